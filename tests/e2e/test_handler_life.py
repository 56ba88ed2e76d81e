"""What a handler knows of its calls and its life, in a real mesh: contexts, statuses, configurations, health."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import slotmesh
from slotmesh.cli.controller_view import FAILED_STATE, READY_STATE
from slotmesh.cli.operator import Operator
from slotmesh.codec import MSGPACK, decode, encode
from slotmesh.runtime.channels import open_channel
from slotmesh.spec.document import parse_mesh
from slotmesh.v1 import call_pb2, mesh_pb2, router_service_pb2, router_service_pb2_grpc
from tests.support.mesh import MeshRun, started_mesh
from tests.support.recorder import VARIABLE, Event, read_records
from tests.support.shell import slotmesh as command
from tests.support.wait import wait_until

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(120)]

HANDLERS = "tests.e2e.life_handlers"
PAUSE_S = 0.01
"""Of a caller between its calls: the replica that starts has processors too."""


@asynccontextmanager
async def mesh_of(name: str, file: Path, *, replicas: int = 1) -> AsyncIterator[tuple[MeshRun, Any]]:
    """A mesh with the handler, whose notes go to the file, and its endpoint."""
    async with (
        started_mesh(f"{HANDLERS}:{name}", replicas=replicas, env={VARIABLE: str(file)}) as mesh,
        slotmesh.connect(mesh.router_address) as client,
    ):
        yield mesh, client.endpoint(name)


def started(file: Path, what: str) -> list[tuple[float, list[str]]]:
    """When something of this kind began, and what was noted of it."""
    records = read_records(file)
    return [
        (record.at, str(record.call).split())
        for record in records
        if record.event is Event.STARTED and str(record.call).split()[0] == what
    ]


async def apply(mesh: MeshRun, backend: str, *, replicas: int = 1, **user_config: str) -> None:
    spec = {"handler": f"{HANDLERS}:Steady", "num_replicas": replicas, "user_config": user_config}
    async with Operator.at(mesh.controller_address) as operator:
        await operator.apply(parse_mesh(json.dumps({"backends": {backend: spec}})))


async def replicas_of(mesh: MeshRun, backend: str) -> list[mesh_pb2.Replica]:
    return [it for it in (await mesh.members()).replicas if it.backend == backend]


async def until(mesh: MeshRun, backend: str, holds: Any, *, timeout: float = 60.0) -> list[mesh_pb2.Replica]:
    """The backend's replicas, once this is true of them."""
    deadline = time.monotonic() + timeout
    while not holds(found := await replicas_of(mesh, backend)):
        assert time.monotonic() < deadline, found
        await asyncio.sleep(0.02)
    return found


# -- what it knows of its calls ----------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("with_session", [True, False], ids=["session", "unary"])
async def test_another_attempt_at_a_call_has_its_key_and_no_other_call_has(tmp_path: Path, with_session: bool) -> None:
    file = tmp_path / "records"
    async with mesh_of("Curious", file, replicas=2) as (mesh, curious), open_channel(mesh.router_address) as channel:
        router = router_service_pb2_grpc.RouterServiceStub(channel)

        async def call(name: str) -> str:
            if with_session:
                key: str = await curious.options(idempotent=True).slowly(name)
                return key
            options = call_pb2.CallOptions(method="slowly", content_type=MSGPACK, idempotent=True)
            payload = encode(MSGPACK, [name])
            request = router_service_pb2.CallRequest(endpoint="Curious", options=options, payload=payload)
            return str(decode(MSGPACK, (await router.Call(request)).payload))

        # Retries are bounded by a share of the calls.
        await asyncio.gather(*[curious.who() for _ in range(100)])
        calls = [asyncio.ensure_future(call(f"c{number}")) for number in range(6)]
        await wait_until(lambda: sum(len(started(file, f"c{number}")) for number in range(6)) == 6)
        for replica_id in sorted(await mesh.replica_pids()):
            await mesh.kill_replica(replica_id)
            await mesh.wait_for_replicas(2, without=replica_id)
        keys = await asyncio.gather(*calls)
        assert len(set(keys)) == 6
        for number, key in enumerate(keys):
            attempts = [(noted[1], noted[2]) for _, noted in started(file, f"c{number}")]
            assert attempts == [("0", key), ("1", key)]


async def test_a_drain_is_told(tmp_path: Path) -> None:
    file = tmp_path / "records"
    async with mesh_of("Curious", file, replicas=1) as (mesh, curious):
        await curious.who()
        (pid,) = (await mesh.replica_pids()).values()
    assert [noted[1] for _, noted in started(file, "drain")] == [str(pid)]


# -- its constructor ---------------------------------------------------------------------------------------------


@pytest.mark.long
async def test_a_constructor_that_always_fails_is_shown_and_tried_again_later_and_later(tmp_path: Path) -> None:
    file = tmp_path / "records"
    async with mesh_of("Steady", file) as (mesh, steady):
        await apply(mesh, "Broken", broken="no model at /models/v7")
        await until(mesh, "Broken", lambda _: len(started(file, "construct")) >= 5)
        failed = await until(mesh, "Broken", lambda found: any("no model" in it.error for it in found))
        assert {it.state for it in failed if it.error} == {FAILED_STATE}
        status = await command("status", "--tracebacks", env={"SLOTMESH_ADDRESS": mesh.controller_address})
        assert "RuntimeError: no model at /models/v7" in status.out
        assert "Traceback (most recent call last)" in status.out
        assert "life_handlers.py" in status.out
        times = [at for at, _ in started(file, "construct")][1:]  # the first one is the handler that works
        gaps = [after - before for before, after in pairwise(times)]
        for gap, least in zip(gaps, (0.5, 1.0, 2.0), strict=False):
            assert gap >= least, gaps
        assert await steady.greet(), "others go on"


@pytest.mark.long
async def test_a_constructor_that_fails_twice_and_then_works_serves(tmp_path: Path) -> None:
    file = tmp_path / "records"
    async with mesh_of("Steady", file) as (mesh, _):
        await apply(mesh, "Flaky", flaky=str(tmp_path / "attempts"))
        (ready,) = await until(mesh, "Flaky", lambda found: [it.state for it in found] == [READY_STATE])
        assert ready.error == ""
        assert (tmp_path / "attempts").read_bytes() == b"..."
        assert len(started(file, "construct")) == 4


# -- its configuration -------------------------------------------------------------------------------------------


@pytest.mark.long
async def test_a_new_configuration_reaches_replicas_that_live(tmp_path: Path) -> None:
    async with mesh_of("Steady", tmp_path / "records", replicas=2) as (mesh, steady):
        before = await mesh.replica_pids()

        async def named(name: str) -> None:
            deadline = time.monotonic() + 10
            while {each.split()[0] for each in await asyncio.gather(*[steady.greet() for _ in range(20)])} != {name}:
                assert time.monotonic() < deadline

        await apply(mesh, "Steady", replicas=2, name="two")
        await named("two")
        await apply(mesh, "Steady", replicas=2, name="nonsense")
        await until(mesh, "Steady", lambda found: all("I take no nonsense" in it.error for it in found))
        assert await mesh.replica_pids() == before
        await named("two")
        status = await command("status", env={"SLOTMESH_ADDRESS": mesh.controller_address})
        assert "reconfigure failed: the old configuration stays in force" in status.out
        await apply(mesh, "Steady", replicas=2, name="three")
        await until(mesh, "Steady", lambda found: not any(it.error for it in found))
        await named("three")
        assert await mesh.replica_pids() == before


# -- its health --------------------------------------------------------------------------------------------------


async def test_a_replica_that_gets_sick_is_replaced_without_a_failed_call(tmp_path: Path) -> None:
    async with mesh_of("Steady", tmp_path / "records") as (mesh, steady):
        before = await mesh.replica_pids()
        stop = asyncio.Event()
        seen: set[str] = set()

        async def caller() -> None:
            while not stop.is_set():
                seen.add((await steady.greet()).split()[1])
                await asyncio.sleep(PAUSE_S)

        callers = [asyncio.ensure_future(caller()) for _ in range(8)]
        sick = await steady.fall_sick()
        assert [sick] == list(before.values())
        found = await until(mesh, "Steady", lambda found: any(it.error for it in found), timeout=10)
        assert "health check failed" in next(it.error for it in found if it.pid == sick)
        await until(mesh, "Steady", lambda found: [it.state for it in found if it.pid != sick] == [READY_STATE])
        await until(mesh, "Steady", lambda found: sick not in {it.pid for it in found})
        stop.set()
        await asyncio.gather(*callers)
        assert len(seen) == 2, "the first one until the second was there"
