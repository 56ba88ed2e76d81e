"""A replica is killed under load: which calls fail, how soon, and what goes on."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import slotmesh
from slotmesh.errors import Executed
from tests.e2e.test_order import assert_one_at_a_time, executions
from tests.support.mesh import started_mesh
from tests.support.recorder import VARIABLE, read_records
from tests.support.wait import wait_until

KEYS = tuple(f"key-{number}" for number in range(12))
REPLICAS = 3
PAUSE_S = 0.01
"""Of a caller between its calls: the replica that starts has processors too."""


@dataclass
class Outcomes:
    """What a load generator saw."""

    answered: list[str] = field(default_factory=list)
    lost: dict[str, float] = field(default_factory=dict)
    """Calls that ended REPLICA_LOST, and when."""

    async def of(self, call: str, reply: asyncio.Future[str]) -> None:
        (outcome,) = await asyncio.gather(reply, return_exceptions=True)
        if outcome == call:
            self.answered.append(call)
            return
        assert isinstance(outcome, slotmesh.ReplicaLost), outcome
        assert outcome.executed is Executed.UNKNOWN
        assert repr(outcome).startswith("ReplicaLost('UNAVAILABLE/REPLICA_LOST: ")
        self.lost[call] = time.monotonic()


def started(file: Path) -> set[int | str]:
    """Calls that have begun to execute."""
    return {record.call for record in read_records(file) if record.event == "started"}


def assert_executed_in_order(file: Path, sent: dict[str, int], lost: set[str]) -> None:
    """Each call ran once at most, those of a key in the order of their numbers. `lost`: calls that may lack."""
    history = executions(read_records(file))
    for key in KEYS:
        records = history[key]
        cut = [record.call for record in records if record.event == "started"]
        finished = {record.call for record in records if record.event == "finished"}
        interrupted = [call for call in cut if call not in finished]
        assert len(interrupted) <= 1
        whole = [record for record in records if record.call not in interrupted]
        calls = assert_one_at_a_time(whole)
        numbers = [int(call.rpartition("/")[2]) for call in calls]
        assert numbers == sorted(set(numbers)), f"{key}: doubled or out of order"
        gaps = set(range(sent[key])) - set(numbers)
        assert {f"{key}/{number}" for number in gaps} <= lost, f"{key}: a gap at a call that was not lost"
    executed_unkeyed = [record.call for record in history[""] if record.event == "started"]
    assert len(executed_unkeyed) == len(set(executed_unkeyed)), "an unkeyed call ran twice"


@pytest.mark.asyncio
@pytest.mark.timeout(180)
async def test_a_killed_replica_costs_its_own_calls_and_nothing_else(tmp_path: Path) -> None:
    file, release = tmp_path / "records", tmp_path / "release"
    keyed, unkeyed = Outcomes(), Outcomes()
    stop = asyncio.Event()
    sent = dict.fromkeys(KEYS, 0)

    async with (
        started_mesh("tests.e2e.handlers:Ledger", replicas=REPLICAS, env={VARIABLE: str(file)}) as mesh,
        slotmesh.connect(mesh.router_address) as client,
    ):
        ledger = client.endpoint("Ledger")

        async def one_key(key: str) -> None:
            lane = ledger.ordered(key)
            while not stop.is_set():
                burst = [f"{key}/{sent[key] + number}" for number in range(8)]
                sent[key] += 8
                await asyncio.gather(*[keyed.of(call, lane.add(key, call)) for call in burst])
                await asyncio.sleep(PAUSE_S)

        async def one_unkeyed(worker: int) -> None:
            number = 0
            while not stop.is_set():
                call = f"unkeyed/{worker}/{number}"
                number += 1
                await unkeyed.of(call, ledger.slowly(call, 0.02))
                await asyncio.sleep(PAUSE_S)

        load = asyncio.gather(*(one_key(key) for key in KEYS), *(one_unkeyed(worker) for worker in range(48)))
        await wait_until(lambda: len(keyed.answered) > 500 and len(unkeyed.answered) > 200, timeout=60)
        running = {f"running/{number}" for number in range(12 * REPLICAS)}
        ends = asyncio.gather(*(unkeyed.of(call, ledger.until(call, str(release))) for call in running))
        await wait_until(lambda: running <= started(file), timeout=60, what="calls that run")
        killed_at = time.monotonic()
        pids = {record.pid for record in read_records(file) if record.call in running}
        killed = await mesh.kill_replica(min(it for it, pid in (await mesh.replica_pids()).items() if pid in pids))
        release.touch()
        replicas = await mesh.wait_for_replicas(REPLICAS, without=killed)
        assert killed not in replicas, "it is replaced"
        before = len(keyed.answered)
        marks = dict(sent)
        await wait_until(
            lambda: all(f"{key}/{marks[key] + 8}" in keyed.answered[before:] for key in KEYS),
            timeout=60,
            what="every key goes on",
        )
        stop.set()
        await load
        await ends

    assert running & unkeyed.lost.keys(), "what ran at the replica that was killed is lost"
    assert max([*unkeyed.lost.values(), *keyed.lost.values()]) - killed_at < 20.0, "they wait for no timeout"
    assert_executed_in_order(file, sent, set(keyed.lost))
