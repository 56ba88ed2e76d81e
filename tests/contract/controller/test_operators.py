"""What operators call: every rpc of ControllerService over real gRPC."""

from __future__ import annotations

import asyncio
import time
import urllib.request
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import pytest
from google.protobuf import duration_pb2, struct_pb2

from controller_service.app import observe
from slotmesh.errors import Reason
from slotmesh.status import from_rpc_error
from slotmesh.telemetry.setup import setup_metrics
from slotmesh.v1 import controller_service_pb2 as pb
from slotmesh.v1 import mesh_pb2
from tests.support.controllers import running_controller, undo_newest, violations
from tests.support.fakes.members import FakeReplica, FakeRouter
from tests.support.wait import wait_until

TWO = """
backends:
  v1: {handler: "app:One"}
  v2: {handler: "app:Two", num_replicas: 2}
endpoints:
  digits: {traffic: {v1: 0.75, v2: 0.25}}
  idle:
"""


async def refused(rpc: Awaitable[Any]) -> tuple[str, Reason, grpc.RpcError]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await rpc
    failure = from_rpc_error(caught.value)
    assert failure.executed.name == "NO"
    return caught.value.code().name, failure.reason, caught.value


@pytest.mark.asyncio
async def test_applying_a_mesh_says_what_it_changed() -> None:
    async with running_controller() as mesh:
        first = await mesh.apply(TWO)
        assert sorted(first.created) == ["backend/v1", "backend/v2", "endpoint/digits", "endpoint/idle"]
        again = await mesh.apply(TWO)
        assert len(again.unchanged) == 4
        assert not [*again.created, *again.updated, *again.deleted]
        assert again.revision >= first.revision

        less = "backends: {v1: {handler: 'app:One', max_ongoing: 3}}\nendpoints: {digits: {traffic: {v1: 1}}}"
        kept = await mesh.apply(less)
        assert sorted(kept.updated) == ["backend/v1", "endpoint/digits"]
        assert not kept.deleted
        pruned = await mesh.apply(less, prune=True)
        assert pruned.deleted == ["endpoint/idle", "backend/v2"]
        assert pruned.revision > kept.revision > again.revision
        assert [it.name for it in (await mesh.operator.ListBackends(pb.ListBackendsRequest())).backends] == ["v1"]
        assert [it.name for it in (await mesh.operator.ListEndpoints(pb.ListEndpointsRequest())).endpoints] == [
            "digits"
        ]


@pytest.mark.asyncio
async def test_single_resources_are_applied_read_and_deleted() -> None:
    async with running_controller() as mesh:
        call = mesh.operator
        backend = mesh_pb2.Backend(name="v1", handler="app:One", max_queue_time=duration_pb2.Duration(seconds=5))
        backend.user_config.update({"k": 3, "deep": [1.5, {"a": None}]})
        applied = await call.ApplyBackend(pb.ApplyBackendRequest(backend=backend))
        got = (await call.GetBackend(pb.GetBackendRequest(name="v1"))).backend
        assert got.user_config == backend.user_config
        assert (got.max_queue_time.seconds, got.max_queued_calls, got.balancer) == (5, 20_000, "least_loaded")
        assert not got.HasField("num_replicas")
        # What was read is accepted, and means the same.
        assert (await call.ApplyBackend(pb.ApplyBackendRequest(backend=got))).revision >= applied.revision

        await call.ApplyEndpoint(pb.ApplyEndpointRequest(endpoint=mesh_pb2.Endpoint(name="digits")))
        traffic = mesh_pb2.TrafficPolicy(weights={"v1": 1.0})
        changed = await call.SetTraffic(pb.SetTrafficRequest(endpoint="digits", traffic=traffic))
        got_endpoint = (await call.GetEndpoint(pb.GetEndpointRequest(name="digits"))).endpoint
        assert got_endpoint == mesh_pb2.Endpoint(name="digits", traffic=traffic, etag=got_endpoint.etag)

        code, reason, error = await refused(call.DeleteBackend(pb.DeleteBackendRequest(name="v1")))
        assert (code, reason) == ("FAILED_PRECONDITION", Reason.BACKEND_IN_USE)
        assert "digits" in str(error)
        deleted = await call.DeleteEndpoint(pb.DeleteEndpointRequest(name="digits"))
        assert deleted.revision > changed.revision
        await call.DeleteBackend(pb.DeleteBackendRequest(name="v1"))
        assert not (await call.ListBackends(pb.ListBackendsRequest())).backends


@pytest.mark.asyncio
async def test_several_resources_are_deleted_in_one_change_which_one_rollback_undoes() -> None:
    async with running_controller() as mesh:
        await mesh.apply("""
            backends: {v1: {}, v2: {}, v3: {}}
            endpoints: {a: {traffic: {v1: 1.0}}, b: {traffic: {v2: 1.0}, shadows: {v3: 0.5}}}
            routes: {/a: {endpoint: a, method: m}, /b: {endpoint: b, method: m}}
            """)
        before = mesh.controller.store.read()
        going = ["backend/v2", "route/b", "backend/v3", "endpoint/b", "backend/v2"]
        dry = await mesh.operator.ApplyMesh(pb.ApplyMeshRequest(deletions=going, validate_only=True))
        assert mesh.controller.store.read() is before
        done = await mesh.operator.ApplyMesh(pb.ApplyMeshRequest(deletions=going, expected_revision=dry.revision))
        assert [*done.deleted] == [*dry.deleted] == ["route/b", "endpoint/b", "backend/v2", "backend/v3"]
        after = mesh.controller.store.read()
        assert ({*after.backends}, {*after.endpoints}, {*after.routes}) == ({"v1"}, {"a"}, {"/a"})
        await undo_newest(mesh)
        again = mesh.controller.store.read()
        assert (again.backends, again.endpoints) == (before.backends, before.endpoints)
        assert again.routes == before.routes


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("request_", "reason", "field"),
    [
        ({"deletions": ["endpoint/b", "backend/v1"]}, Reason.BACKEND_IN_USE, None),
        ({"deletions": ["endpoint/b", "backend/x"]}, Reason.BACKEND_NOT_FOUND, None),
        ({"deletions": ["endpoint/b", "endpoint/x"]}, Reason.ENDPOINT_NOT_FOUND, None),
        ({"deletions": ["endpoint/b", "route/x"]}, Reason.ROUTE_NOT_FOUND, None),
        ({"deletions": ["endpoint/b", "replica/x"]}, Reason.BAD_REQUEST, "deletions[1]"),
        ({"deletions": ["endpoint/b"], "mesh": mesh_pb2.Mesh()}, Reason.BAD_REQUEST, "deletions"),
        ({"deletions": ["endpoint/b"], "prune": True}, Reason.BAD_REQUEST, "deletions"),
        ({"deletions": ["endpoint/b"], "merge": True}, Reason.BAD_REQUEST, "deletions"),
        ({"deletions": ["endpoint/b"], "force": True}, Reason.BAD_REQUEST, "deletions"),
        ({"deletions": ["endpoint/b", "endpoint/b", "x/y"]}, Reason.BAD_REQUEST, "deletions[2]"),
        *(
            ({"deletions": [each]}, Reason.BAD_REQUEST, "deletions[0]")
            for each in ("route", "endpoint/", "backend", "")
        ),
        ({"deletions": ["endpoint/b", "route/"]}, Reason.ROUTE_NOT_FOUND, None),
        ({"deletions": ["endpoint/b"], "expected_revision": 0}, Reason.REVISION_CONFLICT, None),
    ],
)
async def test_where_one_deletion_is_refused_nothing_is_deleted(
    request_: dict[str, Any], reason: Reason, field: str | None
) -> None:
    async with running_controller() as mesh:
        await mesh.apply("backends: {v1: {}}\nendpoints: {a: {traffic: {v1: 1.0}}, b: }")
        before = mesh.controller.store.read()
        _, found, error = await refused(mesh.operator.ApplyMesh(pb.ApplyMeshRequest(**request_)))
        assert found is reason
        assert field is None or [*violations(error)] == [field]
        assert mesh.controller.store.read() is before


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda op: op.GetBackend(pb.GetBackendRequest(name="x")), Reason.BACKEND_NOT_FOUND),
        (lambda op: op.DeleteBackend(pb.DeleteBackendRequest(name="x")), Reason.BACKEND_NOT_FOUND),
        (lambda op: op.GetEndpoint(pb.GetEndpointRequest(name="x")), Reason.ENDPOINT_NOT_FOUND),
        (lambda op: op.DeleteEndpoint(pb.DeleteEndpointRequest(name="x")), Reason.ENDPOINT_NOT_FOUND),
        (
            lambda op: op.SetTraffic(
                pb.SetTrafficRequest(endpoint="x", traffic=mesh_pb2.TrafficPolicy(weights={"v1": 1.0}))
            ),
            Reason.ENDPOINT_NOT_FOUND,
        ),
        (lambda op: op.DrainReplica(pb.DrainReplicaRequest(replica_id="x")), Reason.REPLICA_NOT_FOUND),
    ],
)
async def test_what_is_not_there_is_not_found(call: Callable[[Any], Awaitable[Any]], reason: Reason) -> None:
    async with running_controller() as mesh:
        assert (await refused(call(mesh.operator)))[:2] == ("NOT_FOUND", reason)


@pytest.mark.asyncio
async def test_a_wrong_mesh_is_refused_with_every_mistake_and_changes_nothing() -> None:
    wrong = mesh_pb2.Mesh(
        backends=[
            mesh_pb2.Backend(name="v1", num_replicas=-1, max_ongoing=0, balancer="roundrobin"),
            mesh_pb2.Backend(name="v2", handler="no module", max_queue_time=duration_pb2.Duration(seconds=-1)),
            mesh_pb2.Backend(name="v2"),
            mesh_pb2.Backend(name="not ok"),
            mesh_pb2.Backend(
                name="v3", user_config=struct_pb2.Struct(fields={"n": struct_pb2.Value(number_value=float("nan"))})
            ),
        ],
        endpoints=[
            mesh_pb2.Endpoint(name="digits", traffic=mesh_pb2.TrafficPolicy(weights={"v1": 0.5, "v2": 0.4})),
            mesh_pb2.Endpoint(name="other", traffic=mesh_pb2.TrafficPolicy(weights={"v9": 1.0})),
            mesh_pb2.Endpoint(name="third", traffic=mesh_pb2.TrafficPolicy(weights={"v1": 1.5})),
        ],
    )
    async with running_controller() as mesh:
        code, reason, error = await refused(mesh.operator.ApplyMesh(pb.ApplyMeshRequest(mesh=wrong)))
        assert (code, reason) == ("INVALID_ARGUMENT", Reason.BAD_REQUEST)
        told = violations(error)
        assert set(told) == {
            "mesh.backends[0].num_replicas",
            "mesh.backends[0].max_ongoing",
            "mesh.backends[0].balancer",
            "mesh.backends[1]",
            "mesh.backends[1].handler",
            "mesh.backends[1].max_queue_time",
            "mesh.backends[3].name",
            'mesh.backends[4].user_config.fields["n"]',
            "mesh.endpoints[0].traffic.weights",
            'mesh.endpoints[1].traffic.weights["v9"]',
            'mesh.endpoints[2].traffic.weights["v1"]',
        }
        assert (
            told["mesh.endpoints[0].traffic.weights"]
            == "weights sum to 0.9, must be 1: list all backends that get calls"
        )
        for text in told.values():
            assert text in (error.details() or "")
        for place in ("backends.v1.num_replicas", "backends.not ok", "endpoints.other.traffic.v9"):
            assert f"{place}: " in (error.details() or ""), "people read the places of a document"
        assert not (await mesh.operator.ListBackends(pb.ListBackendsRequest())).backends


@pytest.mark.asyncio
async def test_a_thousand_mistakes_still_fit_into_an_answer() -> None:
    backends = [mesh_pb2.Backend(name=f"bad name {number} {'ü' * 300}") for number in range(1_000)]
    async with running_controller() as mesh:
        request = pb.ApplyMeshRequest(mesh=mesh_pb2.Mesh(backends=backends))
        code, _, error = await refused(mesh.operator.ApplyMesh(request))
        assert code == "INVALID_ARGUMENT"
        assert "more violations" in (error.details() or "")


@pytest.mark.asyncio
async def test_shadows_balancers_and_batch_sizes_reach_the_routers() -> None:
    async with running_controller() as mesh, FakeRouter(mesh.channel, "r") as router:
        await mesh.apply(TWO)
        balanced = mesh_pb2.Backend(name="v3", handler="a:B", balancer="round_robin", max_wire_batch_size=7)
        await mesh.operator.ApplyBackend(pb.ApplyBackendRequest(backend=balanced))
        shadowed = mesh_pb2.TrafficPolicy(weights={"v1": 1.0}, shadows={"v2": 0.1, "v3": 0.5})
        await mesh.operator.SetTraffic(pb.SetTrafficRequest(endpoint="digits", traffic=shadowed))
        table = await router.wait_for(
            lambda table: any(dict(it.traffic.shadows) for it in table.endpoints), "a table with shadows"
        )
        digits = next(it for it in table.endpoints if it.name == "digits")
        assert digits.traffic == shadowed
        backends = {route.name: route.backend for route in table.backends}
        assert backends["v3"].balancer == "round_robin"
        assert (backends["v3"].max_wire_batch_size, backends["v1"].max_wire_batch_size) == (7, 1024)
        code, reason, error = await refused(mesh.operator.DeleteBackend(pb.DeleteBackendRequest(name="v2")))
        assert (code, reason) == ("FAILED_PRECONDITION", Reason.BACKEND_IN_USE)
        assert "digits" in str(error)


@pytest.mark.asyncio
async def test_a_controller_that_launches_needs_handlers() -> None:
    async with running_controller(launches=True) as mesh:
        _, _, error = await refused(
            mesh.operator.ApplyBackend(pb.ApplyBackendRequest(backend=mesh_pb2.Backend(name="v1")))
        )
        assert list(violations(error)) == ["backend.handler"]


@pytest.mark.asyncio
async def test_concurrent_changes_all_go_through() -> None:
    async with running_controller() as mesh:
        await mesh.apply(TWO)
        requests = [
            pb.ApplyBackendRequest(backend=mesh_pb2.Backend(name=f"b{number}", handler="a:B")) for number in range(30)
        ]
        answers = await asyncio.gather(*map(mesh.operator.ApplyBackend, requests))
        assert len({answer.revision for answer in answers}) == 30
        assert len((await mesh.operator.ListBackends(pb.ListBackendsRequest())).backends) == 32


@pytest.mark.asyncio
async def test_replicas_are_listed_by_backend() -> None:
    async with running_controller() as mesh:
        await mesh.apply(TWO)
        async with FakeReplica(mesh.channel, "v2", "b") as b, FakeReplica(mesh.channel, "v1", "a") as a:
            await b.report("READY", max_ongoing=9)
            await wait_until(lambda: a.configurations and b.configurations, what="both attached")
            assert list(await mesh.replicas()) == ["a", "b"]
            only = await mesh.operator.ListReplicas(pb.ListReplicasRequest(backend="v2"))
            (listed,) = only.replicas
            assert (listed.incarnation, listed.address, listed.pid) == (b.incarnation, b.address, 4_711)
            assert abs(listed.start_time.ToSeconds() - time.time()) < 60
            for request, field in (({"page_size": -1}, "page_size"), ({"page_token": "x"}, "page_token")):
                status, reason, error = await refused(mesh.operator.ListReplicas(pb.ListReplicasRequest(**request)))
                assert (status, reason) == ("INVALID_ARGUMENT", Reason.BAD_REQUEST)
                assert [*violations(error)] == [field]


@pytest.mark.asyncio
async def test_draining_a_replica_tells_it_once_and_routers_at_once() -> None:
    async with running_controller() as mesh:
        await mesh.apply(TWO)
        async with FakeReplica(mesh.channel, "v1", "a") as a, FakeRouter(mesh.channel, "r") as router:
            await a.report("READY")
            await router.wait_for(lambda table: any(it.replicas for it in table.backends), "the replica")
            for _ in range(2):
                await mesh.operator.DrainReplica(pb.DrainReplicaRequest(replica_id="a"))
            await router.wait_for(
                lambda table: any(replica.draining for it in table.backends for replica in it.replicas), "draining"
            )
            # A report that was under way changes nothing.
            await a.report("READY", max_ongoing=5)
            await router.wait_for(
                lambda table: any(
                    replica.draining and replica.max_ongoing == 5 for it in table.backends for replica in it.replicas
                ),
                "still draining",
            )
            assert len(a.drains) == 1
            # On a new stream it is told again: it may have missed it.
            await a.cut()
            await a.attach()
            await wait_until(lambda: len(a.drains) == 2, what="the order on the new stream")


@pytest.mark.asyncio
async def test_metrics_say_who_belongs_and_what_was_started() -> None:
    metrics = setup_metrics("slotmesh-controller", port=0)
    try:
        async with running_controller(launches=True) as mesh:
            observe(metrics, mesh.controller)
            await mesh.apply(TWO)
            await mesh.wait_for_launches(3)
            async with FakeRouter(mesh.channel, "r") as router:
                await router.wait_for(lambda table: table.router_addresses, "itself")

                def scrape() -> str:
                    with urllib.request.urlopen(f"http://{metrics.address}/metrics", timeout=30) as answer:
                        return str(answer.read(), "utf-8")

                text = await asyncio.to_thread(scrape)
                assert mesh.controller.board.table is not None
                revision = mesh.controller.board.table.revision
        samples = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
        assert float(samples["slotmesh_controller_revision"]) == revision
        assert float(samples['slotmesh_controller_members{slotmesh_member_kind="router"}']) == 1.0
        assert float(samples['slotmesh_controller_launches_total{slotmesh_backend="v2"}']) == 2.0
    finally:
        metrics.shutdown()
