"""Each option of calls at each rpc, by real servers: one without effect on the rpc is refused, and never ignored."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import grpc
import pytest
import pytest_asyncio

import slotmesh.testing
from slotmesh.calls.call_options import OPTIONS, CallRpc, Option, OptionKind, StatedOptions
from slotmesh.codec import OCTET_STREAM
from slotmesh.convert.call_options import options_to_wire
from slotmesh.errors import Executed, Failure, Reason
from slotmesh.runtime.channels import open_channel
from slotmesh.status import from_rpc_error, from_wire
from slotmesh.v1 import (
    call_pb2,
    direct_service_pb2,
    direct_service_pb2_grpc,
    router_service_pb2,
    router_service_pb2_grpc,
    slot_service_pb2,
    slot_service_pb2_grpc,
)

AttachRequest = direct_service_pb2.AttachRequest
VALUES: dict[OptionKind, Any] = {
    OptionKind.METHOD: "echo",
    OptionKind.CONTENT_TYPE: OCTET_STREAM,
    OptionKind.KEY: "k",
    OptionKind.TENANT: "acme",
    OptionKind.DURATION: 30.0,
    OptionKind.TIME: datetime(2026, 1, 2, tzinfo=UTC),
    OptionKind.FLAG: True,
    OptionKind.COUNT: 1,
    OptionKind.METADATA: {"k": "v"},
    OptionKind.MARK: b"sixteen bytes or",
    OptionKind.BLOCKS: (1, 2),
}


class Echo:
    async def __call__(self, payload: bytes) -> bytes:
        return payload

    async def echo(self, payload: bytes) -> bytes:
        return payload


class Doors:
    """Each rpc with these options; the replica's slots are taken by the router and by itself."""

    def __init__(self, router: grpc.aio.Channel, replica: grpc.aio.Channel) -> None:
        self._calls: Any = router_service_pb2_grpc.RouterServiceStub(router)
        self._slots: Any = slot_service_pb2_grpc.SlotServiceStub(router)
        self._there: Any = slot_service_pb2_grpc.SlotServiceStub(replica)
        self._direct: Any = direct_service_pb2_grpc.DirectServiceStub(replica)

    @property
    def by_rpc(self) -> dict[CallRpc, list[Callable[[call_pb2.CallOptions], Awaitable[Failure | None]]]]:
        """The ways to each rpc; each returns the failure."""
        return {
            CallRpc.CALL: [self._call],
            CallRpc.CALL_STREAMING: [self._stream],
            CallRpc.BROADCAST: [self._broadcast],
            CallRpc.RESERVE_SLOT: [self._reserve, lambda options: self._reserve(options, self._there)],
            CallRpc.DISPATCH: [self._dispatch, lambda options: self._dispatch(options, self._there)],
            CallRpc.DISPATCH_STREAMING: [self._dispatched, lambda options: self._dispatched(options, self._there)],
            CallRpc.ATTACH: [self._attach],
        }

    async def _call(self, options: call_pb2.CallOptions) -> Failure | None:
        request = router_service_pb2.CallRequest(endpoint="echo", options=options, payload=b"x")
        return await failure_of(self._calls.Call(request))

    async def _stream(self, options: call_pb2.CallOptions) -> Failure | None:
        request = router_service_pb2.CallStreamingRequest(endpoint="echo", options=options, payload=b"x")
        return await failure_of(all_of(self._calls.CallStreaming(request)))

    async def _broadcast(self, options: call_pb2.CallOptions) -> Failure | None:
        request = router_service_pb2.BroadcastRequest(endpoint="echo", options=options, payload=b"x")
        return await failure_of(all_of(self._calls.Broadcast(request)))

    async def _reserve(self, options: call_pb2.CallOptions, stub: Any = None) -> Failure | None:
        request = slot_service_pb2.ReserveSlotRequest(endpoint="echo", options=options)
        return await failure_of((stub or self._slots).ReserveSlot(request))

    async def _dispatch(self, options: call_pb2.CallOptions, stub: Any = None) -> Failure | None:
        request = slot_service_pb2.DispatchRequest(token=await self._token(), options=options, payload=b"x")
        return await failure_of((stub or self._slots).Dispatch(request))

    async def _dispatched(self, options: call_pb2.CallOptions, stub: Any = None) -> Failure | None:
        request = slot_service_pb2.DispatchStreamingRequest(token=await self._token(), options=options, payload=b"x")
        return await failure_of(all_of((stub or self._slots).DispatchStreaming(request)))

    async def _attach(self, options: call_pb2.CallOptions) -> Failure | None:
        call = self._direct.Attach()
        await call.write(AttachRequest(open=direct_service_pb2.OpenAttach()))
        await call.write(AttachRequest(attach=direct_service_pb2.AttachSlot(slot_id=1, token=await self._token())))
        await call.write(
            AttachRequest(call=direct_service_pb2.SlotCall(slot_id=1, call_id=1, options=options, payload=b"x"))
        )
        await call.done_writing()
        async for response in call:
            if response.WhichOneof("frame") == "failed":
                return from_wire(response.failed.failure)
        return None

    async def _token(self) -> str:
        slot = (await self._slots.ReserveSlot(slot_service_pb2.ReserveSlotRequest(endpoint="echo"))).slot
        return str(slot.token)


async def all_of(responses: Any) -> None:
    async for _ in responses:
        pass


async def failure_of(call: Awaitable[Any]) -> Failure | None:
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return from_rpc_error(error)
    return None


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def doors() -> AsyncIterator[Doors]:
    async with (
        slotmesh.testing.mesh({"echo": Echo}) as mesh,
        open_channel(mesh.router_addresses[0]) as router,
    ):
        slots: Any = slot_service_pb2_grpc.SlotServiceStub(router)
        slot = (await slots.ReserveSlot(slot_service_pb2.ReserveSlotRequest(endpoint="echo"))).slot
        async with open_channel(slot.replica_address) as replica:
            yield Doors(router, replica)


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("option", OPTIONS.values(), ids=[each.path for each in OPTIONS.values()])
@pytest.mark.parametrize("rpc", [rpc for rpc in CallRpc if rpc is not CallRpc.STREAM_CALLS], ids=lambda rpc: rpc.value)
async def test_an_rpc_takes_an_option_or_refuses_it(doors: Doors, rpc: CallRpc, option: Option) -> None:
    options = options_to_wire(StatedOptions(**{option.attribute: VALUES[option.kind]}), CallRpc.STREAM_CALLS)
    for door in doors.by_rpc[rpc]:
        failure = await door(options)
        if rpc in option.rpcs:
            assert failure is None
        else:
            assert failure is not None
            assert (failure.reason, failure.executed) == (Reason.BAD_REQUEST, Executed.NO)
            assert failure.metadata["field"] == f"options.{option.path}"
