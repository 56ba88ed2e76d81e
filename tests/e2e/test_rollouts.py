"""Replicas are replaced by those of another handler, while clients call: good ones, and such as do not start."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

import pytest

import slotmesh
from benchmarks.processes import ProcessMesh, process_mesh
from slotmesh.cli.controller_view import READY_STATE
from slotmesh.client.mesh import Mesh as Client
from slotmesh.spec.model import Backend, Endpoint, Mesh, TrafficPolicy
from slotmesh.v1 import rollout_pb2

HANDLERS = "tests.e2e.rollout_handlers"
ENDPOINTS = (Endpoint(name="e", traffic=TrafficPolicy(weights={"b": 1.0})),)
CALL_TIMEOUT_S = 30.0
TIMEOUT_S = 60.0
CALLERS = 4
LANES = 8
PAUSE_S = 0.01
"""Of clients between calls: the replicas that start have processors too."""


def spec(handler: str, log: Path, *, replicas: int = 3) -> Mesh:
    backend = Backend(
        name="b",
        handler=f"{HANDLERS}:{handler}",
        num_replicas=replicas,
        user_config={"log": str(log)},
        min_ready_s=0.2,
    )
    return Mesh(backends=(backend,), endpoints=ENDPOINTS)


@dataclass
class Load:
    """What clients were told."""

    answers: Counter[str] = field(default_factory=Counter[str])
    failures: list[BaseException] = field(default_factory=list[BaseException])
    newest: str = ""
    is_over: bool = False


@asynccontextmanager
async def loaded(client: Client) -> AsyncIterator[Load]:
    """Clients that call, with and without ordering keys and request ids, until the block ends."""
    load, endpoint = Load(), client.endpoint("e").options(timeout=CALL_TIMEOUT_S)

    async def record(call: object) -> None:
        try:
            load.newest = await call  # type: ignore[misc]  # any of the client's methods
            load.answers[load.newest] += 1
        except slotmesh.SlotmeshError as failure:
            load.failures.append(failure)

    async def call_on() -> None:
        while not load.is_over:
            await record(endpoint.name())
            await asyncio.sleep(PAUSE_S)

    async def call_once_on() -> None:
        while not load.is_over:
            await record(endpoint.options(request_id=uuid4().hex).name.unary())
            await asyncio.sleep(PAUSE_S)

    async def step_on(key: str) -> None:
        number, lane, pending = 0, endpoint.ordered(key), set[asyncio.Task[None]]()
        while not load.is_over:
            number += 1
            pending.add(asyncio.ensure_future(record(lane.step(key, number))))
            if len(pending) >= 4:  # several at once: order is the mesh's to keep
                _, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                await asyncio.sleep(PAUSE_S)
        if pending:
            await asyncio.wait(pending)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(CALLERS):
            tasks.create_task(call_on())
            tasks.create_task(call_once_on())
        for number in range(LANES):
            tasks.create_task(step_on(f"k{number}"))
        try:
            yield load
        finally:
            load.is_over = True


async def rolled_out(mesh: ProcessMesh, *, taken_back: bool = False) -> rollout_pb2.Rollout:
    """The rollout, once it is complete, and what was taken back is gone."""
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            found = (await mesh.operator.backend("b")).status.rollout
            if (
                found.phase == rollout_pb2.ROLLOUT_PHASE_COMPLETE
                and not found.outdated
                and bool(found.rollback_reason) == taken_back
            ):
                return found
            await asyncio.sleep(0.02)


def require_order(log: Path) -> None:
    newest: dict[str, int] = {}
    for line in log.read_text().splitlines():
        key, number = line.split()
        assert int(number) == newest.get(key, 0) + 1, f"{key}: {number} after {newest.get(key)}"
        newest[key] = int(number)
    assert len(newest) == LANES


@pytest.mark.asyncio
async def test_a_rollout_under_load_fails_no_call_and_keeps_order(tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with process_mesh(spec("First", log)) as mesh, slotmesh.connect(mesh.routers[0].address) as client:
        await rolled_out(mesh)
        async with loaded(client) as load:
            await mesh.operator.apply(spec("Second", log))
            await rolled_out(mesh)
            before = load.answers["second"]
            endpoint = client.endpoint("e").options(timeout=CALL_TIMEOUT_S)
            assert [await endpoint.name() for _ in range(100)] == ["second"] * 100
        assert load.answers["second"] > before
        assert not load.failures
        assert load.answers.keys() == {"first", "second"}
        assert load.newest == "second"
        require_order(log)


@pytest.mark.long
@pytest.mark.asyncio
@pytest.mark.parametrize("handler", ["Raising", "NotThere"])
async def test_a_rollout_to_what_does_not_start_is_taken_back_and_costs_no_call(handler: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with process_mesh(spec("First", log)) as mesh, slotmesh.connect(mesh.routers[0].address) as client:
        await rolled_out(mesh)
        old = {it.replica_id for it in (await mesh.operator.members()).replicas}
        async with loaded(client) as load:
            await mesh.operator.apply(spec(handler, log))
            status = await rolled_out(mesh, taken_back=True)
        assert not load.failures
        assert load.answers.keys() == {"first"}
        assert "died one after another" in status.rollback_reason
        assert "second model" in status.rollback_reason or handler in status.rollback_reason
        (newest, *_) = await mesh.operator.revisions(1)
        assert (newest.who, newest.note) == ("controller", "rollout of b rolled back")
        members = await mesh.operator.members()
        assert {it.replica_id for it in members.replicas if it.state == READY_STATE} == old, "none of them was touched"
        require_order(log)


@pytest.mark.long
@pytest.mark.asyncio
async def test_a_rollout_to_what_fails_calls_is_taken_back(tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with process_mesh(spec("First", log)) as mesh, slotmesh.connect(mesh.routers[0].address) as client:
        await rolled_out(mesh)
        slow = spec("Failing", log)
        with contextlib.suppress(slotmesh.SlotmeshError):
            async with loaded(client) as load:
                (backend,) = slow.backends
                # Long enough for reports of replicas, which come each second.
                patient = Backend(**{it: getattr(backend, it) for it in backend.__slots__} | {"min_ready_s": 6.0})
                await mesh.operator.apply(Mesh(backends=(patient,), endpoints=ENDPOINTS))
                status = await rolled_out(mesh, taken_back=True)
        assert "calls at new replicas have failed" in status.rollback_reason
        assert load.newest == "first"
