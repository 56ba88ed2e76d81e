"""Each change that is in force has its audit line and its event, wherever its caller was cancelled."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import duration_pb2

from controller_service.core.desired.planning import ChangeTerms
from controller_service.core.desired.revisions import ChangeOrigin
from controller_service.core.desired.state import ChangeSet, Desired
from controller_service.shell.changes.configurator import Configurator
from controller_service.shell.events import EventFeed
from controller_service.shell.mesh_state import ChangeJournal, Key, MeshState, WorkQueue
from controller_service.store.protocol import Conflict
from controller_service.store.sqlite.state_file import StateFile
from controller_service.store.sqlite.store_thread import SqliteStore
from slotmesh.runtime.clock import MonotonicClock
from slotmesh.spec.model import Backend, Endpoint, Mesh
from slotmesh.v1 import controller_service_pb2, http_route_service_pb2, mesh_pb2, rollout_pb2
from slotmesh.v1 import controller_service_pb2 as pb
from tests.contract.controller.test_forgetting import lose
from tests.contract.controller.test_launching import make_ready
from tests.support.controllers import Controlled, eventually, running_controller
from tests.support.fakes.members import FakeReplica
from tests.support.wait import wait_until

pytestmark = pytest.mark.asyncio

MESH = """
backends:
  v1: {handler: "%s", num_replicas: 1, graceful_timeout: 0s, min_ready: 0s}
  v2: {handler: "app:Two", num_replicas: 0}
  v3: {handler: "app:Three", num_replicas: 0}
endpoints:
  digits: {traffic: {v1: 0.75, v2: 0.25}}
  idle:
routes:
  /v1/digits: {endpoint: digits, method: classify}
"""
WEIGHTS = mesh_pb2.TrafficPolicy(weights={"v1": 0.5, "v2": 0.5})
SHIFT: dict[str, Any] = {
    "endpoint": "digits",
    "weights": {"v2": 1.0},
    "step": 0.25,
    "every": duration_pb2.Duration(seconds=3_600),
}
NEW = mesh_pb2.Backend(name="new", handler="app:New", num_replicas=0)

CHANGES: dict[str, tuple[Any, str, str]] = {
    "ApplyMesh": (pb.ApplyMeshRequest(mesh=mesh_pb2.Mesh(backends=[NEW])), "backend/new", "BACKEND_CREATED"),
    "ApplyBackend": (
        pb.ApplyBackendRequest(backend=mesh_pb2.Backend(name="new", handler="app:Newer", num_replicas=0)),
        "backend/new",
        "BACKEND_UPDATED",
    ),
    "DeleteBackend": (pb.DeleteBackendRequest(name="v3"), "backend/v3", "BACKEND_DELETED"),
    "ApplyEndpoint": (
        pb.ApplyEndpointRequest(endpoint=mesh_pb2.Endpoint(name="more")),
        "endpoint/more",
        "ENDPOINT_CREATED",
    ),
    "DeleteEndpoint": (pb.DeleteEndpointRequest(name="idle"), "endpoint/idle", "ENDPOINT_DELETED"),
    "SetTraffic": (
        pb.SetTrafficRequest(endpoint="digits", traffic=WEIGHTS),
        "endpoint/digits",
        "ENDPOINT_UPDATED",
    ),
    "ShiftTraffic": (pb.ShiftTrafficRequest(**SHIFT), "endpoint/digits", "TRAFFIC_SHIFT_STARTED"),
    "Rollback": (pb.RollbackRequest(endpoint="digits"), "endpoint/digits", "TRAFFIC_SHIFT_ENDED"),
    "PauseRollout": (pb.PauseRolloutRequest(backend="v1"), "rollout/v1", ""),
    "ApplyHttpRoute": (
        pb.ApplyHttpRouteRequest(route=mesh_pb2.HttpRoute(name="/v2/digits", endpoint="digits", method="m")),
        "route/v2/digits",
        "ROUTE_CREATED",
    ),
    "DeleteHttpRoute": (pb.DeleteHttpRouteRequest(name="/v1/digits"), "route/v1/digits", "ROUTE_DELETED"),
    "DrainReplica": (pb.DrainReplicaRequest(replica_id="a"), "replica/a", "REPLICA_DRAINING"),
    "ForgetReplica": (pb.ForgetReplicaRequest(replica_id="silent"), "replica/silent", "REPLICA_STOPPED"),
}
"""In this order: the rpc, what its audit line is about, and its event, if there is one."""
WITHOUT_A_COMMIT = {"AdoptState"}
"""A new generation has its audit line once it is stored."""


async def test_the_matrix_has_every_rpc_that_changes_something() -> None:
    services = [controller_service_pb2.DESCRIPTOR, http_route_service_pb2.DESCRIPTOR]
    rpcs = {rpc.name for each in services for service in each.services_by_name.values() for rpc in service.methods}
    reading = {name for name in rpcs if name.startswith(("Get", "List", "Describe", "Watch", "Wait", "Read"))}
    assert rpcs - reading == {*CHANGES, *WITHOUT_A_COMMIT}


def is_operators(change: ChangeSet) -> bool:
    return bool(change.origin.who)


class Gate:
    """Holds the writer of the state file in the middle of an operator's commit."""

    def __init__(self) -> None:
        self.is_armed = False
        self.reached = threading.Event()
        self.opened = threading.Event()
        self.written = threading.Event()
        self.conflicts = 0
        self.awaited = 0
        """Operators' commits whose callers wait for them."""

    def hold(self, change: ChangeSet) -> bool:
        """In the store's thread. Returns whether this is the commit that was held."""
        if not self.is_armed or not is_operators(change):
            return False
        self.is_armed = False
        self.reached.set()
        assert self.opened.wait(30.0)
        return True

    def arm(self) -> None:
        for event in (self.reached, self.opened, self.written):
            event.clear()
        self.is_armed = True


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    gate, commit, ask = Gate(), StateFile.commit, SqliteStore.commit

    def held(file: StateFile, change: ChangeSet, expected_revision: int) -> Desired:
        is_held = gate.hold(change)
        try:
            return commit(file, change, expected_revision)
        except Conflict:
            if is_held:
                gate.conflicts += 1  # the reconcile loop was faster: there is no change
            raise
        finally:
            if is_held:
                gate.written.set()

    async def awaited(store: SqliteStore, change: ChangeSet, *, expected_revision: int) -> Desired:
        gate.awaited += is_operators(change)
        try:
            return await ask(store, change, expected_revision=expected_revision)
        finally:
            gate.awaited -= is_operators(change)

    monkeypatch.setattr(StateFile, "commit", held)
    monkeypatch.setattr(SqliteStore, "commit", awaited)
    yield gate
    gate.opened.set()


def audited(caplog: pytest.LogCaptureFixture, done: int = 0) -> list[str]:
    """What the audit lines are about, without those of the first `done` records."""
    lines = [it.getMessage() for it in caplog.records[done:] if it.name == "slotmesh.audit"]
    return [line.partition("object=")[2].partition(" ")[0] for line in lines]


def is_in_audit(caplog: pytest.LogCaptureFixture, done: int, subject: str) -> bool:
    return subject in audited(caplog, done)


@asynccontextmanager
async def rolled_out(state: Path) -> AsyncIterator[Controlled]:
    """A controller with `MESH`, whose v1 has been rolled out twice."""
    async with running_controller(launches=True, state=state) as mesh, AsyncExitStack() as stack:
        for count, handler in enumerate(("app:Old", "app:New"), start=1):
            await mesh.apply(MESH % handler)
            await make_ready(mesh, stack, (await mesh.wait_for_launches(count))[-1])

            async def is_complete() -> bool:
                answer = await mesh.operator.GetBackend(pb.GetBackendRequest(name="v1"))
                return bool(answer.backend.status.rollout.phase == rollout_pb2.ROLLOUT_PHASE_COMPLETE)

            await eventually(is_complete, what="complete")
        yield mesh


async def cancel_while_it_is_written(gate: Gate, rpc: Callable[[Any], Any], request: Any) -> None:
    """Until the reconcile loop was not faster: then the change is in force, and its caller has left before that."""
    conflicts = -1
    while gate.conflicts != conflicts:
        conflicts = gate.conflicts
        gate.arm()
        call = rpc(request)
        await wait_until(gate.reached.is_set, what="it is written")
        call.cancel()
        with pytest.raises((asyncio.CancelledError, grpc.aio.AioRpcError)):
            await call
        await wait_until(lambda: gate.awaited == 0, what="its handler is cancelled")
        gate.opened.set()
        await wait_until(gate.written.is_set, what="it is stored")


async def test_a_change_whose_caller_is_cancelled_while_the_store_writes_is_reported(
    tmp_path: Path, gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "slotmesh.audit")
    async with rolled_out(tmp_path / "state") as mesh, AsyncExitStack() as stack:
        for replica_id in ("a", "silent"):
            replica = await stack.enter_async_context(FakeReplica(mesh.channel, "v2", replica_id))
            await replica.report("READY")
            if replica_id == "silent":
                await lose(mesh, replica)
        with mesh.controller.feed.watch() as watcher:
            for rpc, (request, subject, kind) in CHANGES.items():
                done = len(caplog.records)
                await cancel_while_it_is_written(gate, getattr(mesh.operator, rpc), request)
                is_audited = partial(is_in_audit, caplog, done, subject)
                await wait_until(is_audited, what=f"an audit line of {rpc}")
                kinds = []
                while watcher.unread:
                    kinds.append((await watcher.next())[0].notice.kind.name)
                assert not kind or kind in kinds, f"{rpc}: {kinds}"


async def test_wherever_it_is_cancelled_audit_lines_and_history_agree(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = await SqliteStore.open(tmp_path / "state", lambda: ("a" * 32, Desired()))
    state = MeshState(MonotonicClock(), WorkQueue[Key](), EventFeed("f"))
    store.listen(ChangeJournal(state).committed)
    changing = Configurator(store, state, launches=False)
    terms = ChangeTerms(origin=ChangeOrigin(who="a test"))
    caplog.set_level(logging.INFO, "slotmesh.audit")
    steps, is_cancelled = 0, True
    while is_cancelled:
        steps += 1
        task = asyncio.ensure_future(changing.apply_mesh(Mesh(endpoints=(Endpoint(name=f"e{steps}"),)), terms))
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        (outcome,) = await asyncio.gather(task, return_exceptions=True)
        is_cancelled = isinstance(outcome, asyncio.CancelledError)
    await store.close()
    await asyncio.sleep(0)
    stored = [change.subject for record in store.read().history for change in record.changes]
    assert audited(caplog) == stored
    assert f"endpoint/e{steps}" in stored


async def test_a_large_change_is_reported_in_slices_and_as_a_whole(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = await SqliteStore.open(tmp_path / "state", lambda: ("a" * 32, Desired()))
    state = MeshState(MonotonicClock(), WorkQueue[Key](), EventFeed("f"))
    journal = ChangeJournal(state)
    store.listen(journal.committed)
    changing = Configurator(store, state, launches=False)
    endpoints = tuple(Endpoint(name=f"e{number:04}") for number in range(2_000))
    caplog.set_level(logging.INFO, "slotmesh.audit")
    await changing.apply_mesh(Mesh(endpoints=endpoints))
    assert len(audited(caplog)) < len(endpoints), "the loop has run before all of it was reported"
    await changing.apply_mesh(Mesh(backends=(Backend(name="last"),)))
    journal.close()
    assert audited(caplog) == [*(f"endpoint/{each.name}" for each in endpoints), "backend/last"]
    await store.close()
