"""On what terms the configuration is changed: dry runs, expected revisions, and what is left out of a request."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import duration_pb2
from google.protobuf.field_mask_pb2 import FieldMask
from google.protobuf.message_factory import GetMessageClass

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
    "Rollback": (lambda **terms: pb.RollbackRequest(endpoint="digits", **terms), None),
}
"""Every rpc that changes the configuration, and what it does to what `TWO` says; None: it says other things."""


async def make_two(mesh: Controlled, rpc: str) -> None:
    """What `TWO` says, and what the rpc needs."""
    await mesh.apply(TWO.replace("app:Three", "app:New"))
    await mesh.apply(TWO)
    if rpc == "Rollback":
        await mesh.operator.ShiftTraffic(pb.ShiftTrafficRequest(**SHIFT))
    if rpc == "DeleteHttpRoute":
        await mesh.apply("routes: {/old: {endpoint: digits, method: old}}")


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
            assert list(answer.updated) == ["endpoint/digits" if rpc == "Rollback" else "backend/v3"]
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
async def test_only_what_the_mask_names_of_a_policy_changes() -> None:
    async with running_controller() as mesh:
        await mesh.apply(TWO)

        async def set_traffic(endpoint: str, traffic: mesh_pb2.TrafficPolicy, *fields: str) -> Any:
            mask = FieldMask(paths=fields) if fields else None
            return await mesh.operator.SetTraffic(
                pb.SetTrafficRequest(endpoint=endpoint, traffic=traffic, update_mask=mask)
            )

        weights, shadows = mesh_pb2.TrafficPolicy(weights={"v1": 1.0}), mesh_pb2.TrafficPolicy(shadows={"v3": 0.25})
        await set_traffic("digits", weights, "weights")
        assert await policy(mesh) == mesh_pb2.TrafficPolicy(weights={"v1": 1.0}, shadows={"v2": 0.5})
        await set_traffic("digits", shadows, "shadows")
        assert await policy(mesh) == mesh_pb2.TrafficPolicy(weights={"v1": 1.0}, shadows={"v3": 0.25})
        assert (await set_traffic("digits", weights)).change == pb.CHANGE_UPDATED
        assert await policy(mesh) == weights, "without a mask it is replaced"
        assert (await set_traffic("digits", weights, "weights")).change == pb.CHANGE_UNCHANGED
        assert list(violations(await refused(set_traffic("idle", shadows, "shadows")))) == ["traffic.weights"]
        wrong = violations(await refused(set_traffic("digits", weights, "wieghts", "weights.v1")))
        assert wrong.keys() == {"update_mask"}


@pytest.mark.asyncio
async def test_a_mask_that_names_no_field_is_refused_and_changes_nothing() -> None:
    backend, endpoint = mesh_pb2.Backend(name="v1", handler="app:New"), mesh_pb2.Endpoint(name="digits")
    requests: dict[str, Any] = {
        "ApplyBackend": pb.ApplyBackendRequest(backend=backend, update_mask=FieldMask()),
        "ApplyEndpoint": pb.ApplyEndpointRequest(endpoint=endpoint, update_mask=FieldMask()),
        "ApplyHttpRoute": pb.ApplyHttpRouteRequest(route=ROUTE, update_mask=FieldMask(), allow_missing=True),
        "SetTraffic": pb.SetTrafficRequest(
            endpoint="digits", traffic=mesh_pb2.TrafficPolicy(weights={"v1": 1.0}), update_mask=FieldMask()
        ),
    }
    async with running_controller() as mesh:
        await mesh.apply(TWO)
        before = await configuration(mesh)
        for rpc, request in requests.items():
            problems = violations(await refused(getattr(mesh.operator, rpc)(request)))
            assert problems == {"update_mask": "names no field; leave it out to replace all"}, rpc
            assert await configuration(mesh) == before
            request.ClearField("update_mask")
            assert (await getattr(mesh.operator, rpc)(request)).change != pb.CHANGE_UNCHANGED, rpc
            before = await configuration(mesh)


@pytest.mark.asyncio
async def test_a_mask_changes_its_fields_of_a_backend_and_leaves_the_others() -> None:
    async with running_controller() as mesh:
        await mesh.apply('backends: {v1: {handler: "app:One", max_ongoing: 4, autoscale: {min: 2, max: 5}}}')

        async def apply(*paths: str, allow_missing: bool = False, **fields: Any) -> Any:
            request = pb.ApplyBackendRequest(allow_missing=allow_missing, update_mask=FieldMask(paths=paths))
            request.backend.MergeFrom(mesh_pb2.Backend(**{"name": "v1", **fields}))
            return await mesh.operator.ApplyBackend(request)

        await apply("autoscale.max", "max_ongoing", autoscale=mesh_pb2.Autoscale(max=9, min=7), handler="app:Other")
        backend = mesh.controller.store.read().backends["v1"]
        assert backend.autoscale is not None
        assert (backend.handler, backend.autoscale.min, backend.autoscale.max) == ("app:One", 2, 9)
        assert backend.max_ongoing is None, "the request does not set it"
        await apply("autoscale", "num_replicas", num_replicas=3)
        backend = mesh.controller.store.read().backends["v1"]
        assert (backend.autoscale, backend.num_replicas) == (None, 3)
        for path in ("no_such", "name", "status.ready_replicas", "etag", "user_config.k", "max_ongoing.x"):
            assert violations(await refused(apply(path))).keys() == {"update_mask"}, path
        missing = await refused(apply("num_replicas", name="v9", num_replicas=1))
        assert from_rpc_error(missing).reason is Reason.BACKEND_NOT_FOUND
        created = await apply("num_replicas", name="v9", num_replicas=1, max_ongoing=2, allow_missing=True)
        assert (created.change, mesh.controller.store.read().backends["v9"].max_ongoing) == (pb.CHANGE_CREATED, 2)
        await mesh.operator.ApplyBackend(pb.ApplyBackendRequest(backend=mesh_pb2.Backend(name="v9")))
        assert mesh.controller.store.read().backends["v9"].num_replicas is None, "without a mask it is replaced"


@pytest.mark.asyncio
async def test_an_endpoint_of_a_file_without_a_policy_keeps_its_own_and_an_applied_one_does_not() -> None:
    bare = mesh_pb2.Endpoint(name="digits")
    async with running_controller() as mesh:
        await mesh.apply(TWO)
        await mesh.operator.ApplyMesh(pb.ApplyMeshRequest(mesh=mesh_pb2.Mesh(endpoints=[bare])))
        assert await policy(mesh) == POLICY
        # It would name a backend that goes.
        backends = [mesh_pb2.Backend(name="v1", handler="app:One")]
        pruning = pb.ApplyMeshRequest(mesh=mesh_pb2.Mesh(backends=backends, endpoints=[bare]), prune=True)
        error = await refused(mesh.operator.ApplyMesh(pruning))
        assert [*violations(error)] == ["mesh.endpoints[0].traffic.shadows"]
        assert (error.details() or "").startswith("endpoints.digits.shadows.v2: ")
        limits = mesh_pb2.Endpoint(name="digits", tenants=mesh_pb2.TenantLimits(max_in_flight=3))
        only = FieldMask(paths=["tenants.max_in_flight"])
        await mesh.operator.ApplyEndpoint(pb.ApplyEndpointRequest(endpoint=limits, update_mask=only))
        live = (await mesh.operator.GetEndpoint(pb.GetEndpointRequest(name="digits"))).endpoint
        assert (live.traffic, live.tenants) == (POLICY, limits.tenants)
        whole = pb.ApplyEndpointRequest(endpoint=bare)
        assert (await mesh.operator.ApplyEndpoint(whole)).change == pb.CHANGE_UPDATED
        live = (await mesh.operator.GetEndpoint(pb.GetEndpointRequest(name="digits"))).endpoint
        assert (live.HasField("traffic"), live.HasField("tenants")) == (False, False)


@pytest.mark.asyncio
async def test_a_change_of_a_resource_that_has_changed_since_its_etag_was_read_is_refused() -> None:
    async with running_controller() as mesh:
        await mesh.apply(TWO)
        await mesh.apply("routes: {/old: {endpoint: digits, method: old}}")
        call, read = mesh.operator, await configuration(mesh)
        (v1, *_), endpoints, (route,) = read[1]
        digits = next(it for it in endpoints if it.name == "digits")
        await call.ApplyBackend(pb.ApplyBackendRequest(backend=NEW))
        changes: list[tuple[str, Any]] = [
            ("ApplyMesh", pb.ApplyMeshRequest(mesh=mesh_pb2.Mesh(backends=[v1], endpoints=[digits], routes=[route]))),
            ("ApplyBackend", pb.ApplyBackendRequest(backend=v1)),
            ("ApplyEndpoint", pb.ApplyEndpointRequest(endpoint=digits)),
            ("ApplyHttpRoute", pb.ApplyHttpRouteRequest(route=route)),
            ("SetTraffic", pb.SetTrafficRequest(endpoint="digits", traffic=digits.traffic, etag=digits.etag)),
            ("ShiftTraffic", pb.ShiftTrafficRequest(**SHIFT, etag=digits.etag, validate_only=True)),
            ("DeleteHttpRoute", pb.DeleteHttpRouteRequest(name="/old", etag=route.etag, validate_only=True)),
            ("DeleteEndpoint", pb.DeleteEndpointRequest(name="digits", etag=digits.etag, validate_only=True)),
        ]
        for rpc, request in changes:
            await getattr(call, rpc)(request)  # of others, one has changed meanwhile
        v1.etag, digits.etag, route.etag = "other", "other", "other"
        for rpc, request in changes:
            for it in (request, *(getattr(request, name, None) for name in ("backend", "endpoint", "route"))):
                if hasattr(it, "etag"):
                    it.etag = "other"
            if rpc == "ApplyMesh":
                request.mesh.routes[0].etag = "other"
            failure = from_rpc_error(await refused(getattr(call, rpc)(request)))
            assert failure.reason is Reason.REVISION_CONFLICT, rpc
            assert failure.metadata["etag"] not in {"", "other"}
        gone = pb.DeleteBackendRequest(name="v3", etag="other")
        failure = from_rpc_error(await refused(call.DeleteBackend(gone)))
        assert (failure.reason, failure.metadata["resource"]) == (Reason.REVISION_CONFLICT, "backend/v3")


@pytest.mark.asyncio
@pytest.mark.parametrize("rpc", [it.name for it in pb.DESCRIPTOR.services_by_name["ControllerService"].methods])
async def test_a_request_with_nothing_set_is_refused_with_the_missing_field(rpc: str) -> None:
    """But for requests that ask for all."""
    if rpc.startswith("List") or rpc in {"GetSnapshot", "WatchEvents"}:
        return
    async with running_controller() as mesh:
        method = pb.DESCRIPTOR.services_by_name["ControllerService"].methods_by_name[rpc]
        call = getattr(mesh.operator, rpc)(GetMessageClass(method.input_type)())
        error = await refused(anext(aiter(call)) if method.server_streaming else call)
        assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
        (field,) = violations(error)
        assert field in method.input_type.fields_by_name


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


@pytest.mark.asyncio
async def test_an_etag_follows_from_what_is_configured_and_outlives_the_controller(tmp_path: Path) -> None:
    rich = (
        'backends: {v1: {handler: "app:One", autoscale: {min: 0, max: 3}, user_config: {b: [1, {c: null}], a: x}}}\n'
        "endpoints: {e: {traffic: {v1: 1.0}, tenants: {overrides: {b: {max_in_flight: 1}, a: {max_in_flight: 2}}}}}\n"
        "routes: {/a: {endpoint: e, method: m}}"
    )
    etags = []
    for handler in ("app:One", "app:Two", "app:One"):
        async with running_controller(state=tmp_path / "state") as mesh:
            await mesh.apply(rich.replace("app:One", handler))
            _, (backends, endpoints, routes) = await configuration(mesh)
            etags.append([it.etag for it in (*backends, *endpoints, *routes)])
    first, other, again = etags
    assert first == again
    assert (other[0] != first[0], other[1:] == first[1:]) == (True, True)
