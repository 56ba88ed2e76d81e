"""Tenants at a router, over real gRPC: on one stream, and by unary rpcs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import grpc
import pytest
import pytest_asyncio

from router_service.app import serve
from router_service.config import RouterSettings
from router_service.core.tenants import MAX_NAMED
from slotmesh.errors import Reason
from slotmesh.runtime.channels import open_channel
from slotmesh.status import from_rpc_error
from slotmesh.v1 import call_pb2, router_service_pb2, router_service_pb2_grpc
from tests.support.fakes.controller import fake_controller, table
from tests.support.fakes.replica import FakeReplica, echo, fake_replica, hold
from tests.support.metrics import scraped
from tests.support.router_bench import RouterBench, calls, outcomes, router_bench, taken
from tests.support.wait import wait_until

pytestmark = pytest.mark.asyncio


@pytest_asyncio.fixture
async def mesh() -> AsyncIterator[RouterBench]:
    async with router_bench() as bench:
        yield bench


async def holding(mesh: RouterBench, slots: int) -> FakeReplica:
    """The only replica, all of whose slots are taken."""
    replica = mesh.replicas[0]
    await mesh.with_slots(slots, replica)
    replica.answer = hold
    busy = await mesh.open()
    await busy.write(calls(1, *[b"busy"] * slots))
    await wait_until(lambda: len(replica.payloads) == slots)
    return replica


async def test_a_tenant_is_answered_in_its_turn_on_the_stream_of_a_flood(mesh: RouterBench) -> None:
    replica = await holding(mesh, slots=4)
    web = await mesh.open()
    await web.write(calls(1, *[b"a"] * 4_000, tenant="a"))
    for number in range(5):
        await web.write(calls(5_001 + number, b"b", tenant="b"))
    await taken(web)
    replica.answer = echo
    await replica.answer_held()
    done, failed = await outcomes(web, 4_005)
    assert not failed
    assert len(done) == 4_005
    places = [at for at, payload in enumerate(replica.payloads[4:]) if payload == b"b"]
    assert places == list(range(5)), "few calls go ahead of the turns of a flood"


async def test_calls_of_different_tenants_travel_to_replicas_together(mesh: RouterBench) -> None:
    replica = await holding(mesh, slots=64)
    web = await mesh.open()
    for number in range(64):
        await web.write(calls(number + 1, b"%d" % number, method="m", tenant=f"t{number}"))
    await taken(web)
    before = len(replica.frames)
    replica.answer = echo
    await replica.answer_held()
    await outcomes(web, 64)
    batches = [each for frame in replica.frames[before:] for each in frame.runs.batches]
    assert len(batches) < 8, "a tenant stays at the router, so it divides no batch"
    assert {each.options.tenant for each in batches} == {""}


async def test_unary_calls_of_a_tenant_leave_room_for_those_of_another() -> None:
    async with fake_controller() as controller, fake_replica() as replica:
        settings = RouterSettings(port=0, metrics_port=-1, controller=controller.address, max_pending_unary=20)
        async with serve(settings) as server, open_channel(server.address) as channel:
            stub = router_service_pb2_grpc.RouterServiceStub(channel)
            controller.push(table(1, {"r0": replica.address}))
            replica.answer = hold

            def call(tenant: str) -> grpc.aio.UnaryUnaryCall[object, object]:
                options = call_pb2.CallOptions(tenant=tenant)
                request = router_service_pb2.CallRequest(endpoint="echo", payload=tenant.encode(), options=options)
                return stub.Call(request, timeout=30)  # type: ignore[return-value]

            flood = [asyncio.ensure_future(_outcome(call("a"))) for _ in range(40)]
            await wait_until(lambda: replica.payloads.count(b"a") == 10)
            await wait_until(lambda: sum(each.done() for each in flood) == 30, what="the others are refused")
            other = [asyncio.ensure_future(_outcome(call("b"))) for _ in range(5)]
            await wait_until(lambda: replica.payloads.count(b"b") == 5)
            replica.answer = echo
            await replica.answer_held()
            assert set(await asyncio.gather(*other)) == {"ok"}
            assert sorted(await asyncio.gather(*flood)) == [Reason.QUEUE_FULL.value] * 30 + ["ok"] * 10
            assert await _outcome(call("a")) == "ok", "what has ended takes no place"


async def _outcome(call: grpc.aio.UnaryUnaryCall[object, object]) -> str:
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return from_rpc_error(error).reason.value
    return "ok"


@pytest.mark.parametrize("tenant", ["x" * 257, "two\nlines", "ä" * 129])
async def test_what_no_tenant_is_called_is_refused_with_the_name_of_the_field(mesh: RouterBench, tenant: str) -> None:
    call = await mesh.open()
    await call.write(calls(1, b"x", tenant=tenant))
    _, failed = await outcomes(call, 1)
    assert failed[1].reason == "BAD_REQUEST"
    assert failed[1].message.startswith("options.tenant: ")
    assert failed[1].metadata["field"] == "options.tenant"


async def test_a_scrape_names_the_busiest_tenants_and_adds_up_all_others() -> None:
    async with router_bench(metrics_port=0) as bench:
        (hello,) = bench.controller.hellos
        web = await bench.open()
        for number in range(60):
            await web.write(calls(100 * number + 1, *[b"x"] * (number + 1), tenant=f"t{number}"))
        await outcomes(web, 60 * 61 // 2)
        said = await scraped(hello.metrics_address)
        names = [f"t{number}" for number in range(60)]
        named = {name: said.total("slotmesh_router_tenant_calls_total", endpoint="echo", tenant=name) for name in names}
        other = said.total("slotmesh_router_tenant_calls_total", endpoint="echo", tenant="other")
        assert sum(named.values()) + other == 60 * 61 // 2, "each call is counted once"
        assert sum(value > 0 for value in named.values()) <= MAX_NAMED
        assert said.total("slotmesh_router_tenant_unanswered") == 0
