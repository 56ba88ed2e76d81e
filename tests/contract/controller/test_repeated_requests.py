"""A request that is repeated with its `request_id` takes effect once, also at the next controller."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from google.protobuf.message import Message

from controller_service.core.partition_owners import Incarnation
from controller_service.shell.changes.requests import MAX_REPLY_BYTES
from slotmesh.convert.specification import mesh_to_wire
from slotmesh.errors import Reason
from slotmesh.spec.document import parse_mesh
from slotmesh.status import from_rpc_error
from slotmesh.v1 import controller_service_pb2 as pb
from slotmesh.v1 import mesh_pb2, roles_pb2
from tests.contract.controller.test_audit import MESH, NEW, SHIFT, WEIGHTS, rolled_out
from tests.contract.controller.test_changes import refused
from tests.contract.controller.test_forgetting import lose
from tests.contract.controller.test_older_state import Original
from tests.support.controllers import Controlled, as_if_killed, running_controller, violations
from tests.support.fakes.members import FakeReplica
from tests.support.wait import wait_until

pytestmark = pytest.mark.asyncio


class Case(NamedTuple):
    """A request, and what others change before it is repeated: carried out again, it would do something."""

    request: Message
    others: Sequence[Message] = ()


OTHER_WEIGHTS = mesh_pb2.TrafficPolicy(weights={"v1": 0.25, "v2": 0.75})
CASES = {
    "ApplyMesh": Case(pb.ApplyMeshRequest(mesh=mesh_pb2.Mesh(backends=[NEW])), [pb.DeleteBackendRequest(name="new")]),
    "ApplyBackend": Case(
        pb.ApplyBackendRequest(backend=NEW),
        [pb.ApplyBackendRequest(backend=mesh_pb2.Backend(name="new", handler="app:Newer", num_replicas=0))],
    ),
    "DeleteBackend": Case(
        pb.DeleteBackendRequest(name="v3"),
        [pb.ApplyBackendRequest(backend=mesh_pb2.Backend(name="v3", handler="app:Three", num_replicas=0))],
    ),
    "ApplyEndpoint": Case(
        pb.ApplyEndpointRequest(endpoint=mesh_pb2.Endpoint(name="more")), [pb.DeleteEndpointRequest(name="more")]
    ),
    "DeleteEndpoint": Case(
        pb.DeleteEndpointRequest(name="idle"), [pb.ApplyEndpointRequest(endpoint=mesh_pb2.Endpoint(name="idle"))]
    ),
    "SetTraffic": Case(
        pb.SetTrafficRequest(endpoint="digits", traffic=WEIGHTS),
        [pb.SetTrafficRequest(endpoint="digits", traffic=OTHER_WEIGHTS)],
    ),
    "ShiftTraffic": Case(pb.ShiftTrafficRequest(**SHIFT), [pb.RollbackRequest(endpoint="digits")]),
    "Rollback": Case(pb.RollbackRequest(endpoint="digits"), [pb.ShiftTrafficRequest(**SHIFT)]),
    "PauseRollout": Case(pb.PauseRolloutRequest(backend="v1"), [pb.PauseRolloutRequest(resume=True, backend="v1")]),
    "ApplyHttpRoute": Case(
        pb.ApplyHttpRouteRequest(route=mesh_pb2.HttpRoute(name="/v2/digits", endpoint="digits", method="m")),
        [pb.DeleteHttpRouteRequest(name="/v2/digits")],
    ),
    "DeleteHttpRoute": Case(
        pb.DeleteHttpRouteRequest(name="/v1/digits"),
        [pb.ApplyMeshRequest(mesh=mesh_to_wire(parse_mesh(MESH % "app:Old")))],
    ),
    "DrainReplica": Case(pb.DrainReplicaRequest(replica_id="a")),
    "ForgetReplica": Case(pb.ForgetReplicaRequest(replica_id="silent")),
}
"""In this order."""
FIRST: dict[str, Message] = {
    "Rollback": pb.ShiftTrafficRequest(**SHIFT),
}
"""What has to be there."""
OF_THE_STATE = {"AdoptState"}
"""It ends its controller, and has a test of its own."""
SERVICE = pb.DESCRIPTOR.services_by_name["ControllerService"]


async def send(mesh: Controlled, request: Any, request_id: str = "") -> Message:
    """By the rpc that takes this request. A copy is sent: requests here are constants."""
    named = type(request)()
    named.CopyFrom(request)
    if request_id:
        named.request_id = request_id
    rpc = type(request).__name__.removesuffix("Request")
    reply: Message = await getattr(mesh.operator, rpc)(named)
    return reply


def state_of(mesh: Controlled) -> Any:
    """What operators change: of rollouts, which go on meanwhile, whether they are paused."""
    desired = mesh.controller.store.read()
    paused = {name for name, record in desired.rollouts.items() if record.is_paused}
    return desired.configured_at, paused, desired.shifts, desired.backends, desired.endpoints, desired.orders


async def test_every_rpc_that_changes_something_takes_an_id() -> None:
    changing = {
        rpc.name: rpc.input_type.fields_by_name
        for rpc in SERVICE.methods
        if roles_pb2.ROLE_OPERATOR in rpc.GetOptions().Extensions[roles_pb2.allowed] and rpc.name != "ReadLogs"
    }
    assert changing.keys() == CASES.keys() | OF_THE_STATE
    assert {name for name, fields in changing.items() if "request_id" not in fields} == set()


async def test_a_repeated_request_does_nothing_and_has_the_reply_of_the_first_also_after_a_restart(
    tmp_path: Path,
) -> None:
    replies: dict[str, Message] = {}
    async with rolled_out(tmp_path / "state") as mesh, AsyncExitStack() as stack:
        for replica_id in ("a", "silent"):
            replica = await stack.enter_async_context(FakeReplica(mesh.channel, "v2", replica_id))
            await replica.report("READY")
            if replica_id == "silent":
                await lose(mesh, replica)
        for rpc, case in CASES.items():
            if rpc in FIRST:
                await send(mesh, FIRST[rpc])
            before = state_of(mesh)
            replies[rpc] = await send(mesh, case.request, f"id-of-{rpc}")
            assert state_of(mesh) != before, rpc
            for other in case.others:
                await send(mesh, other)
            before = state_of(mesh)
            assert await send(mesh, case.request, f"id-of-{rpc}") == replies[rpc], rpc
            assert state_of(mesh) == before, rpc
        state = as_if_killed(tmp_path / "state")
    async with running_controller(launches=True, state=state) as mesh:
        before = state_of(mesh)
        for rpc, case in CASES.items():
            assert await send(mesh, case.request, f"id-of-{rpc}") == replies[rpc], rpc
        assert state_of(mesh) == before
        again = await send(mesh, CASES["DeleteBackend"].request, "another-id")
        assert again != replies["DeleteBackend"], "another id is another request"


@pytest.mark.parametrize("has_file", [False, True])
async def test_of_two_that_are_carried_out_at_the_same_time_one_takes_effect(tmp_path: Path, has_file: bool) -> None:
    async with running_controller(state=tmp_path / "state" if has_file else None) as mesh:
        await mesh.apply('backends: {v1: {handler: "app:One"}, v2: {handler: "app:Two"}}')
        await mesh.apply('backends: {v1: {handler: "app:New"}}')
        before = state_of(mesh)[0]
        undo = pb.RollbackRequest(change=before)
        replies = await asyncio.gather(*(send(mesh, undo, "same") for _ in range(8)))
        assert all(reply == replies[0] for reply in replies)
        desired = mesh.controller.store.read()
        assert desired.backends["v1"].handler == "app:One", "an even number of rollbacks would be none"
        assert desired.history[-1].base == before


async def test_an_id_names_one_request_of_one_rpc() -> None:
    async with running_controller() as mesh:
        await mesh.apply('backends: {v1: {handler: "app:One"}, v2: {handler: "app:Two"}}')
        await send(mesh, pb.DeleteBackendRequest(name="v1"), "mine")
        before = mesh.controller.store.read()
        for other in (
            pb.DeleteBackendRequest(name="v2"),
            pb.DeleteEndpointRequest(name="v1"),
            pb.RollbackRequest(change=1),
        ):
            error = await refused(send(mesh, other, "mine"))
            assert from_rpc_error(error).reason is Reason.BAD_REQUEST
            assert violations(error) == {
                "request_id": "mine is the id of another request, which was carried out:"
                " choose a new id for each request"
            }
        assert mesh.controller.store.read() is before


@pytest.mark.parametrize("request_id", ["with blank", "ümlaut", "x" * 129, "a\nb"])
async def test_an_id_that_is_none_is_refused(request_id: str) -> None:
    async with running_controller() as mesh:
        error = await refused(send(mesh, pb.ApplyMeshRequest(mesh=mesh_pb2.Mesh()), request_id))
        assert violations(error)["request_id"].startswith(
            "must be 1 … 128 printable ASCII characters without blanks, is"
        )
        await send(mesh, pb.ApplyMeshRequest(mesh=mesh_pb2.Mesh()), "x" * 128)


async def test_what_was_refused_is_carried_out_when_it_is_repeated_and_what_changed_nothing_is_not() -> None:
    async with running_controller() as mesh:
        await mesh.apply('backends: {v1: {handler: "app:One", num_replicas: 1}}')
        gone = pb.DeleteBackendRequest(name="v2")
        assert from_rpc_error(await refused(send(mesh, gone, "a"))).reason is Reason.BACKEND_NOT_FOUND
        unchanged = pb.ApplyBackendRequest(backend=mesh_pb2.Backend(name="v1", handler="app:One", num_replicas=1))
        before = state_of(mesh)
        assert getattr(await send(mesh, unchanged, "b"), "change", None) == pb.CHANGE_UNCHANGED
        assert state_of(mesh) == before
        dry = pb.DeleteBackendRequest(name="v1", validate_only=True)
        await send(mesh, dry, "c")
        await mesh.apply('backends: {v1: {handler: "app:New"}, v2: {handler: "app:Two"}}')
        assert getattr(await send(mesh, gone, "a"), "change", None) == pb.CHANGE_DELETED
        assert getattr(await send(mesh, unchanged, "b"), "change", None) == pb.CHANGE_UNCHANGED
        assert mesh.controller.store.read().backends["v1"].handler == "app:New", "what others did meanwhile stays"
        assert getattr(await send(mesh, unchanged, "another"), "change", None) == pb.CHANGE_UPDATED
        assert getattr(await send(mesh, pb.DeleteBackendRequest(name="v1"), "c"), "change", None) == pb.CHANGE_DELETED


async def test_of_a_long_reply_the_revision_is_repeated() -> None:
    names = [f"endpoint-with-a-long-name-{number:04}" for number in range(MAX_REPLY_BYTES // 25)]
    mesh_message = mesh_pb2.Mesh(endpoints=[mesh_pb2.Endpoint(name=name) for name in names])
    request = pb.ApplyMeshRequest(mesh=mesh_message)
    async with running_controller() as mesh:
        first = await send(mesh, request, "long")
        assert first.ByteSize() > MAX_REPLY_BYTES
        again = await send(mesh, request, "long")
        assert again == pb.ApplyMeshResponse(revision=state_of(mesh)[0])


async def test_a_repeated_order_to_drain_does_not_drain_the_next_process_of_that_name(tmp_path: Path) -> None:
    async with running_controller(state=tmp_path / "state") as mesh:
        await mesh.apply('backends: {v1: {handler: "app:One"}}')
        request = pb.DrainReplicaRequest(replica_id="a")
        async with FakeReplica(mesh.channel, "v1", "a") as replica:
            await replica.report("READY")
            await send(mesh, request, "drain")
            await wait_until(lambda: replica.drains, what="the order to drain")
            await replica.report("STOPPED")
        async with FakeReplica(mesh.channel, "v1", "a") as replica:
            await replica.report("READY")
            await send(mesh, request, "drain")
            known = mesh.controller.state.observed.replica("a")
            assert known is not None
            assert not known.is_drain_requested
            assert not replica.drains
            await wait_until(lambda: lists(mesh, replica), what="that the store lists it")
            async with running_controller(state=as_if_killed(tmp_path / "state")) as after:
                known = after.controller.state.observed.replica("a")
                assert known is not None
                assert not known.is_drain_requested
            await send(mesh, request, "drain-again")
            await wait_until(lambda: replica.drains, what="the order to drain")


async def test_an_order_to_drain_that_a_replica_never_got_is_carried_out_by_the_next_controller(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        mesh = await stack.enter_async_context(running_controller(state=tmp_path / "state"))
        await mesh.apply('backends: {v1: {handler: "app:One"}}')
        names = ("drained", "forgotten", "other")
        replicas = {it: await stack.enter_async_context(FakeReplica(mesh.channel, "v1", it)) for it in names}
        for replica in replicas.values():
            await lose(mesh, replica)  # none was ever ready: no table has named it
        listed = await stack.enter_async_context(FakeReplica(mesh.channel, "v1", "listed"))
        await listed.report("READY")
        await wait_until(lambda: mesh.controller.store.read().roster.members, what="that the store lists it")
        await lose(mesh, listed)
        for replica_id in ("drained", "listed"):
            await send(mesh, pb.DrainReplicaRequest(replica_id=replica_id))
        await send(mesh, pb.ForgetReplicaRequest(replica_id="forgotten"))
        after = await stack.enter_async_context(running_controller(state=as_if_killed(tmp_path / "state")))
        known = after.controller.state.observed.replica("listed")
        assert known is not None
        assert known.is_drain_requested, "before it attaches"
        for replica in replicas.values():
            await replica.move(after.channel)
        await wait_until(lambda: replicas["drained"].drains, what="the order to drain")
        await wait_until(lambda: replicas["forgotten"].ended, what="that it is refused")
        await replicas["other"].report("READY")
        assert not replicas["other"].drains
        assert not replicas["other"].ended


async def test_a_repeated_order_to_forget_has_the_reply_of_the_first() -> None:
    async with running_controller(lease_s=1.0) as mesh:
        await mesh.apply('backends: {v1: {handler: "app:One"}}')
        async with FakeReplica(mesh.channel, "v1", "a") as replica:
            await replica.report("READY")
            await wait_until(lambda: mesh.controller.store.read().roster.members, what="that the store lists it")
            await replica.cut()
            await wait_until(lambda: is_suspect(mesh, "a"), what="its silence", timeout=30.0)
            request = pb.ForgetReplicaRequest(replica_id="a")
            first, meanwhile = await asyncio.gather(*(send(mesh, request, "forget") for _ in range(2)))
            assert getattr(first, "incarnations", None) == [replica.incarnation]
            assert meanwhile == first, "it came twice before it was stored"
            assert await send(mesh, request, "forget") == first
            assert await send(mesh, request, "another") != first, "nothing is left to be forgotten"


def lists(mesh: Controlled, replica: FakeReplica) -> bool:
    return Incarnation(replica.replica_id, replica.incarnation) in mesh.controller.store.read().roster.owners()


def is_suspect(mesh: Controlled, replica_id: str) -> bool:
    replica = mesh.controller.state.observed.replica(replica_id)
    return replica is not None and replica.suspect_since is not None


async def test_the_next_controller_knows_that_a_state_was_adopted(tmp_path: Path) -> None:
    async with AsyncExitStack() as members:
        original = await Original.make(members, tmp_path)
        request = pb.AdoptStateRequest(source=pb.STATE_SOURCE_STORE)
        async with running_controller(state=original.older) as copy:
            await copy.apply('backends: {v1: {handler: "app:Digits", num_replicas: 1, max_queued_calls: 7}}')
            await original.router.move(copy.channel)
            await wait_until(lambda: copy.controller.routers, what="the router is there")
            earlier = pb.ApplyEndpointRequest(endpoint=mesh_pb2.Endpoint(name="more"))
            before = await send(copy, earlier, "earlier")
            first = await send(copy, request, "adopt")
        async with running_controller(state=original.older) as after:
            assert await send(after, request, "adopt") == first
            assert await send(after, earlier, "earlier") == before
            assert from_rpc_error(await refused(send(after, request, "other"))).reason is Reason.BAD_REQUEST
