"""Limits by tenant in a whole mesh, whichever way calls come; and who sees them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

import slotmesh
import slotmesh.testing
from examples.own_proto import greeter_pb2
from examples.own_proto.greeter_pb2_grpc import GreeterStub
from slotmesh.codec import OCTET_STREAM
from slotmesh.convert.specification import endpoint_from_wire, endpoint_to_wire
from slotmesh.inference.grpc_inference_service_pb2_grpc import GRPCInferenceServiceStub
from slotmesh.runtime.channels import open_channel
from slotmesh.spec.model import Endpoint
from slotmesh.spec.tenants import NO_LIMITS, TenantLimit, TenantLimits
from slotmesh.status import from_rpc_error
from slotmesh.testing import RunningMesh
from slotmesh.v1 import controller_service_pb2 as pb
from slotmesh.v1 import mesh_pb2, tap_service_pb2
from slotmesh.v1.controller_service_pb2_grpc import ControllerServiceStub
from slotmesh.v1.tap_service_pb2_grpc import TapServiceStub
from tests.contract.inference.inference_client import request
from tests.contract.own_protos.greeters import AsyncGreeter
from tests.support.gated_handler import Gated
from tests.support.ingresses import served_mesh
from tests.support.wait import wait_until

pytestmark = pytest.mark.asyncio

TIMEOUT_S = 20


async def limit(mesh: RunningMesh, endpoint: str, tenants: TenantLimits) -> None:
    """Sets the limits, and waits until the router has them."""
    wire = mesh_pb2.Mesh(endpoints=[endpoint_to_wire(Endpoint(name=endpoint, tenants=tenants))])
    async with open_channel(mesh.controller_address) as channel:
        await ControllerServiceStub(channel).ApplyMesh(pb.ApplyMeshRequest(mesh=wire))
    await mesh.wait_ready()


@asynccontextmanager
async def gated(**limits: Any) -> AsyncIterator[tuple[RunningMesh, Gated]]:
    async with slotmesh.testing.mesh({"gated": Gated}) as mesh:
        if limits:
            await limit(mesh, "gated", TenantLimits(**limits))
        yield mesh, mesh.instances("gated")[0]


async def by_stream(mesh: RunningMesh, tenant: str) -> bytes:
    view = mesh.endpoint("gated").options(content_type=OCTET_STREAM, tenant=tenant)
    result: bytes = await view(tenant.encode())
    return result


async def by_lane(mesh: RunningMesh, tenant: str) -> bytes:
    lane = mesh.endpoint("gated").options(content_type=OCTET_STREAM, tenant=tenant).ordered(f"key of {tenant}")
    result: bytes = await lane(tenant.encode())
    return result


async def by_map(mesh: RunningMesh, tenant: str) -> bytes:
    view = mesh.endpoint("gated").options(content_type=OCTET_STREAM, tenant=tenant)
    (result,) = await view.method("__call__").map([tenant.encode()])
    return bytes(result)


async def by_unary(mesh: RunningMesh, tenant: str) -> bytes:
    view = mesh.endpoint("gated").options(content_type=OCTET_STREAM, tenant=tenant)
    return bytes(await view.method("__call__").unary(tenant.encode()))


async def by_values(mesh: RunningMesh, tenant: str) -> bytes:
    view = mesh.endpoint("gated").options(content_type=OCTET_STREAM, tenant=tenant)
    values = [bytes(value) async for value in view.values.stream(tenant.encode())]
    return values[0]


WAYS: list[Callable[[RunningMesh, str], Awaitable[bytes]]] = [by_stream, by_lane, by_map, by_unary, by_values]


@pytest.mark.parametrize("way", WAYS)
async def test_calls_in_flight_are_limited_by_tenant_whichever_way_they_come(
    way: Callable[[RunningMesh, str], Awaitable[bytes]],
) -> None:
    async with gated(max_in_flight=1) as (mesh, handler), asyncio.timeout(TIMEOUT_S):
        first = asyncio.ensure_future(way(mesh, "a"))
        if way is not by_values:  # which is on its way before the next one, on the same stream
            await wait_until(lambda: handler.seen == [b"a"])
        with pytest.raises(slotmesh.TenantLimited) as refused:
            await asyncio.gather(way(mesh, "a"), way(mesh, "a"))
        error = refused.value
        assert (error.status, error.executed) == ("RESOURCE_EXHAUSTED", slotmesh.Executed.NO)
        assert error.retry_delay_s
        assert (error.metadata["tenant"], error.metadata["limit"]) == ("a", "max_in_flight")
        assert "tenants.max_in_flight" in str(error)
        other = asyncio.ensure_future(way(mesh, "b"))
        without = asyncio.ensure_future(way(mesh, ""))
        handler.gate.set()
        assert [await each for each in (first, other, without)] == [b"a", b"b", b""]
        assert await way(mesh, "a") == b"a"


async def test_a_caller_that_waits_for_the_retry_delay_is_admitted() -> None:
    async with gated(max_calls_per_s=1, burst=1) as (mesh, handler), asyncio.timeout(TIMEOUT_S):
        handler.gate.set()
        await by_stream(mesh, "a")
        for _ in range(2):
            with pytest.raises(slotmesh.TenantLimited) as refused:
                await by_stream(mesh, "a")
            assert 0 < (refused.value.retry_delay_s or 0) <= 1
            await asyncio.sleep(refused.value.retry_delay_s or 0)
            assert await by_stream(mesh, "a") == b"a"


async def test_a_reservation_counts_as_a_call_of_its_tenant() -> None:
    async with gated(max_calls_per_s=1, burst=1) as (mesh, handler), asyncio.timeout(TIMEOUT_S):
        handler.gate.set()
        view = mesh.endpoint("gated").options(content_type=OCTET_STREAM, tenant="a")
        async with view.reserve() as slot:
            assert await slot.method("__call__")(b"in the slot") == b"in the slot"
        with pytest.raises(slotmesh.TenantLimited):
            async with view.reserve():
                pass
        async with mesh.endpoint("gated").options(tenant="b").reserve():
            pass


async def test_limits_change_while_the_mesh_runs_and_stay_where_nothing_is_said() -> None:
    async with gated() as (mesh, handler), asyncio.timeout(TIMEOUT_S):
        handler.gate.set()
        limits = TenantLimits(max_calls_per_s=1, burst=1, overrides={"big": TenantLimit(max_in_flight=100)})
        await limit(mesh, "gated", limits)
        await by_stream(mesh, "a")
        with pytest.raises(slotmesh.TenantLimited):
            await by_stream(mesh, "a")
        await asyncio.gather(*(by_stream(mesh, "big") for _ in range(50)))
        async with open_channel(mesh.controller_address) as channel:
            controller = ControllerServiceStub(channel)
            weights = mesh_pb2.TrafficPolicy(weights={"gated": 1.0})
            await controller.SetTraffic(pb.SetTrafficRequest(endpoint="gated", traffic=weights))
            said = await controller.ListEndpoints(pb.ListEndpointsRequest())
        (endpoint,) = said.endpoints
        assert endpoint_from_wire(endpoint).tenants == limits
        await limit(mesh, "gated", NO_LIMITS)
        await asyncio.gather(*(by_stream(mesh, "a") for _ in range(20)))


async def test_a_tenant_is_named_by_a_header_of_http() -> None:
    async with served_mesh({"gated": Gated}) as served, asyncio.timeout(TIMEOUT_S):
        await limit(served.mesh, "gated", TenantLimits(max_in_flight=1))
        handler = served.mesh.instances("gated")[0]

        def post(tenant: str) -> Awaitable[Any]:
            headers = {"content-type": OCTET_STREAM, "X-Slotmesh-Tenant": tenant}
            return served.ask("POST", "/gated", tenant.encode(), headers)

        first = asyncio.ensure_future(post("Müller"))
        await wait_until(lambda: handler.seen == ["Müller".encode()])
        refused = await post("Müller")
        assert (refused.status, refused.json["reason"]) == (429, "TENANT_LIMIT")
        assert refused.json["executed"] == "no"
        assert int(refused.headers["retry-after"]) >= 1
        other = asyncio.ensure_future(post("b"))
        await wait_until(lambda: len(handler.seen) == 2)
        handler.gate.set()
        assert [(await each).status for each in (first, other)] == [200, 200]


async def test_a_tenant_is_named_by_metadata_of_own_rpcs() -> None:
    services = {"greeter": [greeter_pb2]}
    async with slotmesh.testing.mesh({"greeter": AsyncGreeter}, grpc_services=services) as mesh:
        await limit(mesh, "greeter", TenantLimits(max_calls_per_s=1, burst=1))
        async with open_channel(mesh.router_addresses[0]) as channel:
            stub: Any = GreeterStub(channel)

            async def greet(tenant: str) -> None:
                request = greeter_pb2.GreetRequest(name="Ada")
                await stub.Greet(request, metadata=(("slotmesh-tenant", tenant),), timeout=TIMEOUT_S)

            await greet("a")
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await greet("a")
            failure = from_rpc_error(refused.value)
            assert (failure.reason.value, failure.metadata["tenant"]) == ("TENANT_LIMIT", "a")
            await greet("b")
            with pytest.raises(grpc.aio.AioRpcError) as wrong:
                await greet("x" * 257)
            assert "slotmesh-tenant: at most 256 bytes" in str(wrong.value.details())


@slotmesh.deployment
class Identity:
    async def infer(self, x: Any) -> Any:
        return x


async def test_a_tenant_is_named_by_metadata_of_the_inference_protocol() -> None:
    async with slotmesh.testing.mesh({"model": Identity}) as mesh:
        await limit(mesh, "model", TenantLimits(max_calls_per_s=1, burst=1))
        async with open_channel(mesh.router_addresses[0]) as channel:
            stub: Any = GRPCInferenceServiceStub(channel)

            async def infer(*tenants: str) -> None:
                metadata = [("slotmesh-tenant", tenant) for tenant in tenants]
                await stub.ModelInfer(request("model", {"x": [1, 2]}), metadata=metadata, timeout=TIMEOUT_S)

            await infer("a")
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await infer("a")
            failure = from_rpc_error(refused.value)
            assert (failure.reason.value, failure.metadata["tenant"]) == ("TENANT_LIMIT", "a")
            await infer("b")
            for _ in range(3):
                await infer()
                await infer("")
            for wrong, why in (["x" * 257], "at most 256 bytes"), (["a", "b"], "is given twice"):
                with pytest.raises(grpc.aio.AioRpcError) as mistake:
                    await infer(*wrong)
                assert f"slotmesh-tenant: {why}" in str(mistake.value.details())


async def test_operators_see_who_calls_and_who_is_refused() -> None:
    async with gated(max_in_flight=2) as (mesh, handler), asyncio.timeout(TIMEOUT_S):
        async with open_channel(mesh.router_addresses[0]) as channel:
            tap: Any = TapServiceStub(channel).TapCalls(tap_service_pb2.TapCallsRequest(endpoint="gated", tenant="a"))
            await tap.initial_metadata()
            calls = [asyncio.ensure_future(by_stream(mesh, "a")) for _ in range(5)]
            calls += [asyncio.ensure_future(by_stream(mesh, "b")), asyncio.ensure_future(by_stream(mesh, ""))]
            await wait_until(lambda: len(handler.seen) == 4)
            tenants: list[mesh_pb2.TenantLoad] = []
            async with open_channel(mesh.controller_address) as controller:
                while not tenants:
                    await asyncio.sleep(0.02)
                    said = await ControllerServiceStub(controller).GetSnapshot(pb.GetSnapshotRequest())
                    loads = [load for each in said.routers for load in each.router.endpoint_loads]
                    tenants = [each for load in loads for each in load.tenants]
            assert [(each.tenant, each.unanswered) for each in tenants] == [("a", 2), ("b", 1)]
            assert tenants[0].calls_per_s > tenants[1].calls_per_s > 0
            assert tenants[0].refused_per_s > 0 == tenants[1].refused_per_s
            handler.gate.set()
            await asyncio.gather(*calls, return_exceptions=True)
            seen: list[tap_service_pb2.TappedCall] = []
            while len(seen) < 5:
                seen += (await tap.read()).calls
            assert {each.tenant for each in seen} == {"a"}
            assert sorted(each.reason for each in seen) == ["", "", *["TENANT_LIMIT"] * 3]
            tap.cancel()
