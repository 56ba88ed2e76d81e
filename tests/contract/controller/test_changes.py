"""On what terms the configuration is changed: dry runs, expected revisions, and what is left out of a request."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import pytest
from google.protobuf import duration_pb2

from slotmesh.errors import Reason
from slotmesh.status import from_rpc_error
from slotmesh.v1 import controller_service_pb2 as pb
from slotmesh.v1 import mesh_pb2
from tests.support.controllers import Controlled, running_controller, violations
from tests.support.fakes.members import FakeReplica
from tests.support.wait import wait_until

TWO = """
backends:
  v1: {handler: "app:One"}
  v2: {handler: "app:Two"}
  v3: {handler: "app:Three"}
endpoints:
  digits: {traffic: {v1: 0.75, v2: 0.25}, shadows: {v2: 0.5}}
  idle:
"""
POLICY = mesh_pb2.TrafficPolicy(weights={"v1": 0.75, "v2": 0.25}, shadows={"v2": 0.5})
NEW = mesh_pb2.Backend(name="v3", handler="app:New")

SHIFT: dict[str, Any] = {
    "endpoint": "digits",
    "weights": {"v2": 1.0},
    "step": 0.25,
    "every": duration_pb2.Duration(seconds=3_600),
}

ROUTE = mesh_pb2.HttpRoute(name="/new", endpoint="digits", method="new")
CHANGES: dict[str, tuple[Callable[..., Any], pb.Change.ValueType | None]] = {
    "ApplyMesh": (lambda **terms: pb.ApplyMeshRequest(mesh=mesh_pb2.Mesh(backends=[NEW]), **terms), None),
    "ApplyBackend": (lambda **terms: pb.ApplyBackendRequest(backend=NEW, **terms), pb.CHANGE_UPDATED),
    "DeleteBackend": (lambda **terms: pb.DeleteBackendRequest(name="v3", **terms), pb.CHANGE_DELETED),
    "ApplyEndpoint": (
        lambda **terms: pb.ApplyEndpointRequest(endpoint=mesh_pb2.Endpoint(name="new"), **terms),
        pb.CHANGE_CREATED,
    ),
    "DeleteEndpoint": (lambda **terms: pb.DeleteEndpointRequest(name="idle", **terms), pb.CHANGE_DELETED),
    "ApplyHttpRoute": (lambda **terms: pb.ApplyHttpRouteRequest(route=ROUTE, **terms), pb.CHANGE_CREATED),
    "DeleteHttpRoute": (lambda **terms: pb.DeleteHttpRouteRequest(name="/old", **terms), pb.CHANGE_DELETED),
    "SetTraffic": (
        lambda **terms: pb.SetTrafficRequest(
            endpoint="digits", traffic=mesh_pb2.TrafficPolicy(weights={"v1": 1.0}), **terms
        ),
        pb.CHANGE_UPDATED,
    ),
    "ShiftTraffic": (lambda **terms: pb.ShiftTrafficRequest(**SHIFT, **terms), None),
    "EndShift": (lambda **terms: pb.EndShiftRequest(endpoint="digits", go_back=True, **terms), None),
    "Rollback": (pb.RollbackRequest, None),
}
"""Every rpc that changes the configuration, and what it does to what `TWO` says; None: it says other things."""


async def make_two(mesh: Controlled, rpc: str) -> None:
    """What `TWO` says, and what the rpc needs."""
    await mesh.apply(TWO.replace("app:Three", "app:New"))
    await mesh.apply(TWO)
    if rpc == "DeleteHttpRoute":
        await mesh.apply("routes: {/old: {endpoint: digits, method: old}}")
    if rpc == "EndShift":
        await mesh.operator.ShiftTraffic(pb.ShiftTrafficRequest(**SHIFT))


async def configuration(mesh: Controlled) -> tuple[int, Any]:
    """Its revision, and all of it."""
    backends = await mesh.operator.ListBackends(pb.ListBackendsRequest())
    endpoints = await mesh.operator.ListEndpoints(pb.ListEndpointsRequest())
    assert backends.revision == endpoints.revision
    routes = await mesh.operator.ListHttpRoutes(pb.ListHttpRoutesRequest())
    for it in (*backends.backends, *endpoints.endpoints):
        it.ClearField("status")
    return backends.revision, (backends.backends, endpoints.endpoints, routes.routes)


async def policy(mesh: Controlled, endpoint: str = "digits") -> mesh_pb2.TrafficPolicy:
    got: mesh_pb2.Endpoint = (await mesh.operator.GetEndpoint(pb.GetEndpointRequest(name=endpoint))).endpoint
    return got.traffic


async def refused(rpc: Awaitable[Any]) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await rpc
    return caught.value


def test_no_change_is_left_out() -> None:
    service = pb.DESCRIPTOR.services_by_name["ControllerService"]
    changing = {rpc.name for rpc in service.methods if "validate_only" in rpc.input_type.fields_by_name}
    assert changing == {*CHANGES, "PauseRollout"}, "which is tested with rollouts"
    assert not [
        rpc.name
        for rpc in service.methods
        if rpc.name.startswith(("Apply", "Set", "Delete")) and rpc.name not in changing
    ]


@pytest.mark.asyncio
@pytest.mark.parametrize("rpc", CHANGES)
async def test_a_dry_run_says_what_would_be_and_changes_nothing(rpc: str) -> None:
    request, change = CHANGES[rpc]
    async with running_controller() as mesh:
        await make_two(mesh, rpc)
        before = await configuration(mesh)
        answer = await getattr(mesh.operator, rpc)(request(validate_only=True))
        assert answer.revision == before[0]
        if change is not None:
            assert answer.change == change
        elif hasattr(answer, "updated"):
            assert list(answer.updated) == ["backend/v3"]
        assert await configuration(mesh) == before
        made = await getattr(mesh.operator, rpc)(request())
        assert made.revision > before[0]
        after = await configuration(mesh)
        assert after[0] == made.revision
        assert after[1] != before[1]


@pytest.mark.asyncio
@pytest.mark.parametrize("rpc", CHANGES)
async def test_a_change_that_expects_another_revision_is_refused(rpc: str) -> None:
    request, _ = CHANGES[rpc]
    async with running_controller() as mesh:
        await make_two(mesh, rpc)
        read, _ = await configuration(mesh)
        moved = await mesh.operator.ApplyBackend(
            pb.ApplyBackendRequest(backend=mesh_pb2.Backend(name="v9", handler="app:Nine"))
        )
        before = await configuration(mesh)
        for expected in (read, moved.revision + 1_000):
            for validate_only in (False, True):
                error = await refused(
                    getattr(mesh.operator, rpc)(request(expected_revision=expected, validate_only=validate_only))
                )
                failure = from_rpc_error(error)
                assert (error.code(), failure.reason) == (grpc.StatusCode.ABORTED, Reason.REVISION_CONFLICT)
                assert failure.metadata["expected_revision"] == str(expected)
                assert failure.metadata["revision"] == str(moved.revision)
        assert await configuration(mesh) == before
        made = await getattr(mesh.operator, rpc)(request(expected_revision=moved.revision))
        assert made.revision > moved.revision


@pytest.mark.asyncio
async def test_what_members_do_is_no_change_of_the_configuration() -> None:
    async with running_controller() as mesh:
        await mesh.apply(TWO)
        read, _ = await configuration(mesh)
        async with FakeReplica(mesh.channel, "v1", "a") as replica:
            await replica.report("READY")
            # It gets partitions: revisions of the store, and of routing tables, go on.
            await wait_until(lambda: mesh.controller.store.read().revision > read, what="a new revision of the store")
            assert (await configuration(mesh))[0] == read
            await mesh.operator.SetTraffic(
                pb.SetTrafficRequest(
                    endpoint="digits", traffic=mesh_pb2.TrafficPolicy(weights={"v1": 1.0}), expected_revision=read
                )
            )


@pytest.mark.asyncio
async def test_shares_that_are_not_said_stay() -> None:
    async with running_controller() as mesh:
        await mesh.apply(TWO)
        set_traffic = mesh.operator.SetTraffic
        weights = mesh_pb2.TrafficPolicy(weights={"v1": 1.0})
        await set_traffic(pb.SetTrafficRequest(endpoint="digits", traffic=weights))
        assert await policy(mesh) == mesh_pb2.TrafficPolicy(weights={"v1": 1.0}, shadows={"v2": 0.5})
        shadows = mesh_pb2.TrafficPolicy(shadows={"v3": 0.25})
        await set_traffic(pb.SetTrafficRequest(endpoint="digits", traffic=shadows))
        assert await policy(mesh) == mesh_pb2.TrafficPolicy(weights={"v1": 1.0}, shadows={"v3": 0.25})
        await set_traffic(pb.SetTrafficRequest(endpoint="digits", clear_shadows=True))
        assert await policy(mesh) == mesh_pb2.TrafficPolicy(weights={"v1": 1.0})
        nothing = await set_traffic(pb.SetTrafficRequest(endpoint="digits"))
        assert nothing.change == pb.CHANGE_UNCHANGED
        error = await refused(set_traffic(pb.SetTrafficRequest(endpoint="idle", traffic=shadows)))
        assert list(violations(error)) == ["traffic.weights"]


@pytest.mark.asyncio
async def test_an_endpoint_without_a_policy_keeps_the_one_it_has() -> None:
    bare = mesh_pb2.Endpoint(name="digits")
    async with running_controller() as mesh:
        await mesh.apply(TWO)
        applied = await mesh.operator.ApplyEndpoint(pb.ApplyEndpointRequest(endpoint=bare))
        assert applied.change == pb.CHANGE_UNCHANGED
        await mesh.operator.ApplyMesh(pb.ApplyMeshRequest(mesh=mesh_pb2.Mesh(endpoints=[bare])))
        assert await policy(mesh) == POLICY
        # It would name a backend that goes.
        backends = [mesh_pb2.Backend(name="v1", handler="app:One")]
        pruning = pb.ApplyMeshRequest(mesh=mesh_pb2.Mesh(backends=backends, endpoints=[bare]), prune=True)
        error = await refused(mesh.operator.ApplyMesh(pruning))
        assert [*violations(error)] == ["mesh.endpoints[0].traffic.shadows"]
        assert (error.details() or "").startswith("endpoints.digits.shadows.v2: ")
        cleared = pb.ApplyEndpointRequest(endpoint=bare, clear_traffic=True)
        assert (await mesh.operator.ApplyEndpoint(cleared)).change == pb.CHANGE_UPDATED
        assert not (await mesh.operator.GetEndpoint(pb.GetEndpointRequest(name="digits"))).endpoint.HasField("traffic")


@pytest.mark.asyncio
async def test_what_contradicts_itself_is_refused() -> None:
    async with running_controller() as mesh:
        await mesh.apply(TWO)
        both = pb.SetTrafficRequest(endpoint="digits", traffic=POLICY, clear_shadows=True)
        assert list(violations(await refused(mesh.operator.SetTraffic(both)))) == ["clear_shadows"]
        endpoint = mesh_pb2.Endpoint(name="digits", traffic=POLICY)
        clearing = pb.ApplyEndpointRequest(endpoint=endpoint, clear_traffic=True)
        assert list(violations(await refused(mesh.operator.ApplyEndpoint(clearing)))) == ["clear_traffic"]


ONLY_V2: dict[str, Callable[..., Any]] = {
    "SetTraffic": lambda **terms: pb.SetTrafficRequest(
        endpoint="digits", traffic=mesh_pb2.TrafficPolicy(weights={"v2": 1.0}), **terms
    ),
    "ShiftTraffic": lambda **terms: pb.ShiftTrafficRequest(**SHIFT, **terms),
}


@pytest.mark.asyncio
@pytest.mark.parametrize("rpc", ONLY_V2)
async def test_a_request_may_ask_that_backends_that_get_more_are_ready(rpc: str) -> None:
    async with running_controller() as mesh:
        await mesh.apply(TWO)
        change, request = getattr(mesh.operator, rpc), ONLY_V2[rpc]
        before = await configuration(mesh)
        for validate_only in (False, True):
            error = await refused(change(request(require_ready=True, validate_only=validate_only)))
            (text,) = violations(error).values()
            assert text.startswith("backend v2 has no ready replica: no replica of it is attached")
        assert await configuration(mesh) == before
        await change(request(validate_only=True))  # it is not checked
        async with FakeReplica(mesh.channel, "v2", "a") as replica:
            error = await refused(change(request(require_ready=True)))
            assert "its replicas are starting" in str(violations(error))
            await replica.report("READY")
            await change(request(require_ready=True))
        assert (await configuration(mesh))[0] > before[0]


@pytest.mark.asyncio
async def test_traffic_can_be_taken_away_from_what_is_not_ready() -> None:
    async with running_controller() as mesh, FakeReplica(mesh.channel, "v1", "a") as replica:
        await mesh.apply(TWO)
        await replica.report("READY")
        weights = mesh_pb2.TrafficPolicy(weights={"v1": 0.9, "v2": 0.1}, shadows={"v3": 0.5})
        request = pb.SetTrafficRequest(endpoint="digits", traffic=weights, require_ready=True)
        assert (await mesh.operator.SetTraffic(request)).change == pb.CHANGE_UPDATED, "and a shadow needs no replica"
