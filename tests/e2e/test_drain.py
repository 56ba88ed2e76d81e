"""Replicas are drained one after another under load: no call fails, and each key's calls stay in order."""

from __future__ import annotations

import asyncio
import os
import signal
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import slotmesh
from slotmesh.runtime.channels import open_channel
from slotmesh.v1 import controller_service_pb2, controller_service_pb2_grpc
from tests.e2e.test_order import assert_one_at_a_time, executions
from tests.support.faults import faulty_mesh
from tests.support.mesh import started_mesh
from tests.support.recorder import VARIABLE, read_records
from tests.support.wait import wait_until

KEYS = tuple(f"key-{number}" for number in range(12))
REPLICAS = 3
PAUSE_S = 0.02
"""Of a caller between its calls: the replicas that start have processors too."""


@pytest.mark.long
@pytest.mark.asyncio
@pytest.mark.timeout(120)
async def test_draining_every_replica_under_load_fails_no_call(tmp_path: Path) -> None:
    file = tmp_path / "records"
    stop = asyncio.Event()
    sent = dict.fromkeys(KEYS, 0)
    answered = 0

    async with (
        started_mesh("tests.e2e.handlers:Ledger", replicas=REPLICAS, env={VARIABLE: str(file)}) as mesh,
        slotmesh.connect(mesh.router_address) as client,
        open_channel(mesh.controller_address) as channel,
    ):
        ledger = client.endpoint("Ledger")
        controller: Any = controller_service_pb2_grpc.ControllerServiceStub(channel)

        async def one_key(key: str) -> None:
            nonlocal answered
            lane = ledger.ordered(key)
            while not stop.is_set():
                burst = [f"{key}/{sent[key] + number}" for number in range(8)]
                sent[key] += 8
                assert await asyncio.gather(*[lane.add(key, call) for call in burst]) == burst
                answered += 8
                await asyncio.sleep(PAUSE_S)

        async def one_unkeyed(worker: int) -> None:
            nonlocal answered
            for number in count():
                if stop.is_set():
                    return
                call = f"unkeyed/{worker}/{number}"
                slowly = ledger.options(request_id=call, timeout=30).slowly.unary if worker % 2 else ledger.slowly
                assert await slowly(call, 0.005) == call
                answered += 1
                await asyncio.sleep(PAUSE_S)

        load = asyncio.gather(*(one_key(key) for key in KEYS), *(one_unkeyed(worker) for worker in range(16)))

        async def some_more_calls() -> None:
            before = answered
            await wait_until(lambda: load.done() or answered > before + 200, timeout=60)

        for replica_id in await mesh.replica_pids():
            await some_more_calls()
            await controller.DrainReplica(controller_service_pb2.DrainReplicaRequest(replica_id=replica_id))
            await mesh.wait_for_replicas(REPLICAS, without=replica_id)
        stop.set()
        await load

    history = executions(read_records(file))
    for key in KEYS:
        calls = assert_one_at_a_time(history[key])
        assert [int(call.rpartition("/")[2]) for call in calls] == list(range(sent[key]))
    unkeyed = [record.call for record in history[""] if record.event == "started"]
    assert len(unkeyed) == len(set(unkeyed))


@pytest.mark.long
@pytest.mark.asyncio
@pytest.mark.timeout(60)
async def test_calls_that_outlive_the_grace_are_lost_unless_they_are_idempotent(tmp_path: Path) -> None:
    file = tmp_path / "records"
    async with (
        faulty_mesh(
            "tests.e2e.handlers:Ledger", replicas=2, routers=1, graceful_timeout_s=0.5, env={VARIABLE: str(file)}
        ) as mesh,
        slotmesh.connect(mesh.addresses) as client,
    ):
        ledger = client.endpoint("Ledger")
        again = ledger.options(idempotent=True)
        lane = again.ordered("key")
        lost, *executed = [
            asyncio.ensure_future(call)
            for call in (ledger.endlessly("once"), again.endlessly("again"), lane.endlessly("1"), lane.add("key", "2"))
        ]
        await wait_until(lambda: len(read_records(file)) == 3, what="three calls run")
        for pid in (await mesh.replica_pids()).values():
            os.kill(pid, signal.SIGTERM)
        with pytest.raises(slotmesh.ReplicaLost, match="graceful_timeout") as caught:
            await lost
        assert caught.value.executed is slotmesh.Executed.UNKNOWN
        async with asyncio.timeout(30):
            assert await asyncio.gather(*executed) == ["again", "1", "2"]

    records = read_records(file)
    assert [record.call for record in records if record.event == "started" and record.call in {"1", "2"}] == [
        *("1", "1", "2")
    ]
    cancelled = [record.call for record in records if record.outcome == "CancelledError"]
    assert sorted(cancelled) == ["1", "again", "once"]
