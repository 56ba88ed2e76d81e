"""gRPC metadata of unary rpcs, which handlers get as far as the router was told to hand it on."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, use_span

import slotmesh
from router_service.app import serve
from router_service.config import RouterSettings
from slotmesh.codec import OCTET_STREAM
from slotmesh.config import SettingsError
from slotmesh.runtime.channels import open_channel
from slotmesh.units import parse_names
from slotmesh.v1 import (
    call_pb2,
    router_service_pb2,
    router_service_pb2_grpc,
    slot_service_pb2,
    slot_service_pb2_grpc,
)
from tests.support.fakes.controller import fake_controller, table
from tests.support.fakes.replica import FakeReplica, fake_replica
from tests.support.wait import wait_until

SAID = (("x-tenant", "ada"), ("x-user", "bob"), ("authorization", "secret"), ("x-data-bin", b"\x00"))
TRACEPARENT = "00-" + "a" * 32 + "-" + "1" * 16 + "-01"


@asynccontextmanager
async def router(call_metadata: str) -> AsyncIterator[tuple[str, FakeReplica]]:
    """The address of a router that was told so, and its replica."""
    async with fake_controller() as controller, fake_replica() as replica:
        settings = RouterSettings(port=0, metrics_port=-1, controller=controller.address, call_metadata=call_metadata)
        async with serve(settings) as server:
            controller.push(table(1, {"r0": replica.address}))
            await wait_until(
                lambda: any(report.linked for reports in controller.reports_of.values() for report in reports),
                what="the link",
            )
            yield server.address, replica


def request(**metadata: str) -> router_service_pb2.CallRequest:
    return router_service_pb2.CallRequest(
        endpoint="echo", options=call_pb2.CallOptions(metadata=metadata), payload=b"x"
    )


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("told", "handed"),
    [("", {}), ("x-tenant", {"x-tenant": "ada"}), ("x-user, x-tenant,x-none", {"x-tenant": "ada", "x-user": "bob"})],
)
async def test_handlers_get_what_the_list_names(told: str, handed: dict[str, str]) -> None:
    async with router(told) as (address, replica), open_channel(address) as channel:
        stub = router_service_pb2_grpc.RouterServiceStub(channel)
        await stub.Call(request(), metadata=SAID)
        await stub.Call(router_service_pb2.CallRequest(endpoint="echo"), metadata=SAID)
        slots = slot_service_pb2_grpc.SlotServiceStub(channel)
        slot = (await slots.ReserveSlot(slot_service_pb2.ReserveSlotRequest(endpoint="echo"), metadata=SAID)).slot
        await slots.Dispatch(slot_service_pb2.DispatchRequest(token=slot.token), metadata=SAID)
        assert [dict(run.options.metadata) for run in replica.runs[:2]] == [handed] * 2
        assert dict(replica.slots.ops[-1].dispatch.options.metadata) == handed


@pytest.mark.asyncio
async def test_what_the_call_says_goes_before_what_its_rpc_says_and_both_are_bounded() -> None:
    async with router("x-tenant,x-user") as (address, replica), open_channel(address) as channel:
        stub = router_service_pb2_grpc.RouterServiceStub(channel)
        await stub.Call(request(**{"x-tenant": "own"}), metadata=SAID)
        assert dict(replica.runs[-1].options.metadata) == {"x-tenant": "own", "x-user": "bob"}
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Call(request(more="m" * 8000), metadata=(("x-tenant", "t" * 200),))
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "options.metadata" in (caught.value.details() or "")


@pytest.mark.asyncio
async def test_a_trace_context_becomes_that_of_the_call() -> None:
    async with router("traceparent,tracestate") as (address, replica), open_channel(address) as channel:
        stub = router_service_pb2_grpc.RouterServiceStub(channel)
        await stub.Call(request(), metadata=(("traceparent", TRACEPARENT), ("tracestate", "a=1")))
        await stub.Call(request(), metadata=(("traceparent", "nonsense"),))
        said = [(list(run.origins.traceparents), list(run.origins.tracestates)) for run in replica.runs]
        assert said == [([TRACEPARENT], ["a=1"]), ([], [])]
        assert not any(run.options.metadata for run in replica.runs)
        async with slotmesh.connect(address) as mesh:
            traced = mesh.endpoint("echo").options(traced=True, content_type=OCTET_STREAM)
            with use_span(NonRecordingSpan(SpanContext(1, 2, False, TraceFlags(1)))):
                await traced.echo.unary(b"x")
        assert list(replica.runs[-1].origins.traceparents) == [f"00-{1:032x}-{2:016x}-01"]


@pytest.mark.parametrize(
    "told",
    ["authorization", "grpc-timeout", "slotmesh-x", "X-Tenant", "x-data-bin", "a b", ",".join(map(str, range(65)))],
)
def test_names_that_no_list_may_have_are_refused(told: str) -> None:
    with pytest.raises(SettingsError, match="call-metadata"):
        RouterSettings.parse(["--call-metadata", told], {}, prog="router")


def test_a_list_is_read_with_blanks_and_without_repeats() -> None:
    settings: Any = RouterSettings.parse(["--call-metadata", " x-a, x-b,,x-a"], {}, prog="router")
    assert parse_names(settings.call_metadata) == ("x-a", "x-b")


@pytest.mark.asyncio
@pytest.mark.parametrize(("said", "handed"), [("order-7", {"x-request-id": "order-7"}), ("no id", {}), ("x" * 129, {})])
async def test_the_id_of_a_request_is_handed_on_without_a_list(said: str, handed: dict[str, str]) -> None:
    async with router("") as (address, replica), open_channel(address) as channel:
        stub = router_service_pb2_grpc.RouterServiceStub(channel)
        await stub.Call(request(), metadata=(("x-request-id", said),))
        assert [dict(run.options.metadata) for run in replica.runs] == [handed]
