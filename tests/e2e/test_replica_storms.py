"""Replicas that are killed again and again, or stopped for good, under load."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from pathlib import Path

import pytest

import slotmesh
from slotmesh.errors import Executed
from tests.e2e.test_order import assert_one_at_a_time, executions
from tests.support.mesh import started_mesh
from tests.support.recorder import VARIABLE, read_records
from tests.support.wait import wait_until

pytestmark = [pytest.mark.asyncio, pytest.mark.long]

REPLICAS = 4
KILLS = 8
CALLERS = 16
KEYS = tuple(f"key-{number}" for number in range(24))


@pytest.mark.timeout(120)
async def test_replicas_that_are_killed_one_after_another_cost_their_own_calls_and_are_replaced() -> None:
    chance = random.Random(18)
    stop = asyncio.Event()
    answered = 0
    lost: list[slotmesh.ReplicaLost] = []
    killed: set[str] = set()

    async with (
        started_mesh("tests.e2e.handlers:Workshop", replicas=REPLICAS) as mesh,
        slotmesh.connect(mesh.router_address) as client,
    ):
        workshop = client.endpoint("Workshop")

        async def call_again_and_again(caller: int) -> None:
            nonlocal answered
            number = 0
            while not stop.is_set():
                call, number = f"{caller}/{number}", number + 1
                try:
                    assert await workshop.work(call, 0.01) == call
                    answered += 1
                except slotmesh.ReplicaLost as error:
                    lost.append(error)

        load = asyncio.gather(*(call_again_and_again(caller) for caller in range(CALLERS)))
        for _ in range(KILLS):
            goal = answered + 300
            await wait_until(lambda goal=goal: answered >= goal, timeout=30.0, what="calls go on")  # type: ignore[misc]
            pids = await mesh.replica_pids()
            victim = chance.choice(sorted(pids))
            os.kill(pids[victim], signal.SIGKILL)
            killed.add(victim)
        ready = await mesh.wait_for_replicas(REPLICAS, timeout=30.0)
        # Some were ready, and dead already, when the controller was asked: all that are left have not been killed.
        while killed & ready.keys():
            ready = await mesh.wait_for_replicas(REPLICAS, timeout=30.0)
        stop.set()
        await load

    assert {error.replica_id for error in lost} <= killed, "calls of others went on"
    assert all(error.executed is Executed.UNKNOWN for error in lost)
    assert len(lost) <= KILLS * CALLERS


@pytest.mark.timeout(120)
async def test_a_replica_that_is_stopped_for_good_is_replaced_and_its_keys_go_on_in_order(tmp_path: Path) -> None:
    file = tmp_path / "records"
    stop = asyncio.Event()
    sent = dict.fromkeys(KEYS, 0)
    answered: set[str] = set()
    lost: set[str] = set()
    env = {VARIABLE: str(file), "SLOTMESH_LEASE": "2s", "SLOTMESH_DEAD_AFTER": "4s"}

    async with (
        started_mesh("tests.e2e.handlers:Ledger", replicas=2, env=env) as mesh,
        slotmesh.connect(mesh.router_address) as client,
    ):
        ledger = client.endpoint("Ledger")

        async def one_key(key: str) -> None:
            lane = ledger.ordered(key)
            while not stop.is_set():
                calls = [f"{key}/{sent[key] + number}" for number in range(4)]
                sent[key] += len(calls)
                outcomes = await asyncio.gather(*[lane.add(key, call) for call in calls], return_exceptions=True)
                for call, outcome in zip(calls, outcomes, strict=True):
                    if outcome == call:
                        answered.add(call)
                    else:
                        assert isinstance(outcome, slotmesh.ReplicaLost), outcome
                        lost.add(call)

        load = asyncio.gather(*(one_key(key) for key in KEYS))
        await wait_until(lambda: len(answered) > 500, timeout=60)
        stopped = await mesh.kill_replica(number=signal.SIGSTOP)
        await mesh.wait_for_replicas(2, without=stopped, timeout=60.0)
        marks = dict(sent)
        await wait_until(
            lambda: all(f"{key}/{marks[key] + 8}" in answered for key in KEYS), timeout=40.0, what="every key goes on"
        )
        stop.set()
        await load
        assert "replica_dead" in mesh.log_text()

    history = executions(read_records(file))
    for key in KEYS:
        records = history[key]
        finished = {record.call for record in records if record.event == "finished"}
        calls = assert_one_at_a_time([record for record in records if record.call in finished])
        numbers = [int(call.rpartition("/")[2]) for call in calls]
        assert numbers == sorted(set(numbers)), f"{key}: doubled or out of order"
        gaps = {f"{key}/{number}" for number in set(range(sent[key])) - set(numbers)}
        assert gaps <= lost, f"{key}: a gap at a call that was not lost"
