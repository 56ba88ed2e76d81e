"""`google.api.field_behavior` states which fields a request needs: servers refuse it without one of these only."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
import pytest_asyncio
from google.api import field_behavior_pb2
from google.protobuf.descriptor import FieldDescriptor

import slotmesh.testing
from slotmesh.errors import Failure, Reason
from slotmesh.runtime.channels import open_channel
from slotmesh.status import from_rpc_error, from_wire
from slotmesh.v1 import (
    call_pb2,
    direct_service_pb2,
    direct_service_pb2_grpc,
    info_service_pb2,
    info_service_pb2_grpc,
    router_service_pb2,
    router_service_pb2_grpc,
    slot_service_pb2,
    slot_service_pb2_grpc,
    tap_service_pb2,
    tap_service_pb2_grpc,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

MODULES = (router_service_pb2, slot_service_pb2, direct_service_pb2, tap_service_pb2, info_service_pb2)
OPTIONS = call_pb2.CallOptions(method="__call__")
CALL: dict[str, Any] = {"endpoint": "echo", "options": OPTIONS, "payload": b"x"}
VALID: dict[str, Any] = {
    "RouterService/Call": router_service_pb2.CallRequest(**CALL),
    "RouterService/CallStreaming": router_service_pb2.CallStreamingRequest(**CALL),
    "RouterService/DescribeEndpoints": router_service_pb2.DescribeEndpointsRequest(endpoint="echo"),
    "RouterService/StreamCalls": router_service_pb2.OpenStream(endpoint="echo", default_options=OPTIONS),
    "SlotService/ReserveSlot": slot_service_pb2.ReserveSlotRequest(endpoint="echo"),
    "SlotService/RenewSlot": slot_service_pb2.RenewSlotRequest(token="$TOKEN"),
    "SlotService/ReleaseSlot": slot_service_pb2.ReleaseSlotRequest(token="$TOKEN"),
    "SlotService/Dispatch": slot_service_pb2.DispatchRequest(token="$TOKEN", **CALL),
    "SlotService/DispatchStreaming": slot_service_pb2.DispatchStreamingRequest(token="$TOKEN", **CALL),
    "DirectService/Attach: attach": direct_service_pb2.AttachSlot(slot_id=1, token="$TOKEN", endpoint="echo"),
    "DirectService/Attach: call": direct_service_pb2.SlotCall(slot_id=1, call_id=1, options=OPTIONS, payload=b"x"),
    "TapService/TapCalls": tap_service_pb2.TapCallsRequest(endpoint="echo"),
    "TapService/ListCalls": tap_service_pb2.ListCallsRequest(endpoint="echo"),
    "InfoService/GetServerInfo": info_service_pb2.GetServerInfoRequest(),
}
"""A valid request of each rpc, or of streams each frame with required fields; `$TOKEN` is a fresh slot."""


class Echo:
    async def __call__(self, payload: bytes = b"") -> bytes:
        return payload


class Doors:
    def __init__(self, router: grpc.aio.Channel, replica: grpc.aio.Channel) -> None:
        self.stubs: dict[str, Any] = {
            "RouterService": router_service_pb2_grpc.RouterServiceStub(router),
            "SlotService": slot_service_pb2_grpc.SlotServiceStub(router),
            "TapService": tap_service_pb2_grpc.TapServiceStub(router),
            "InfoService": info_service_pb2_grpc.InfoServiceStub(router),
            "DirectService": direct_service_pb2_grpc.DirectServiceStub(replica),
        }

    async def failure(self, rpc: str, without: str = "") -> Failure | None:
        """Of the valid request of this rpc, without one field."""
        request = type(VALID[rpc])()
        request.CopyFrom(VALID[rpc])
        token = await self.token()
        if "token" in request.DESCRIPTOR.fields_by_name:
            request.token = token
        if without:
            request.ClearField(without)
        service, _, method = rpc.partition("/")
        call: Any = getattr(self.stubs[service], method.partition(":")[0])
        try:
            match rpc:
                case "RouterService/StreamCalls":
                    await half_closed(call(), [router_service_pb2.StreamCallsRequest(open=request)])
                case "DirectService/Attach: attach":
                    return await self.attached(call(), request)
                case "DirectService/Attach: call":
                    slot = direct_service_pb2.AttachSlot(slot_id=1, token=token)
                    return await self.attached(call(), slot, request)
                case "TapService/TapCalls":
                    await tapped(call(request))
                case _ if "Streaming" in rpc:
                    async for _ in call(request):
                        pass
                case _:
                    await call(request)
        except grpc.aio.AioRpcError as error:
            return from_rpc_error(error)
        return None

    async def attached(self, call: Any, slot: Any, slot_call: Any = None) -> Failure | None:
        frames = [
            direct_service_pb2.AttachRequest(open=direct_service_pb2.OpenAttach()),
            direct_service_pb2.AttachRequest(attach=slot),
            *([] if slot_call is None else [direct_service_pb2.AttachRequest(call=slot_call)]),
        ]
        for response in await half_closed(call, frames):
            match response.WhichOneof("frame"):
                case "attached" if response.attached.HasField("failure"):
                    return from_wire(response.attached.failure)
                case "failed":
                    return from_wire(response.failed.failure)
                case _:
                    pass
        return None

    async def token(self) -> str:
        reserved = await self.stubs["SlotService"].ReserveSlot(VALID["SlotService/ReserveSlot"])
        return str(reserved.slot.token)


async def half_closed(call: Any, frames: list[Any]) -> list[Any]:
    """All responses."""
    for frame in frames:
        await call.write(frame)
    await call.done_writing()
    return [response async for response in call]


async def tapped(call: Any) -> None:
    """A tap is open once its initial metadata is there."""
    await call.initial_metadata()
    if not call.done():
        call.cancel()
        return
    await call.read()


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def doors() -> AsyncIterator[Doors]:
    async with (
        slotmesh.testing.mesh({"echo": Echo}) as mesh,
        open_channel(mesh.router_addresses[0]) as router,
    ):
        slots: Any = slot_service_pb2_grpc.SlotServiceStub(router)
        slot = (await slots.ReserveSlot(VALID["SlotService/ReserveSlot"])).slot
        async with open_channel(slot.replica_address) as replica:
            yield Doors(router, replica)


def is_required(field: FieldDescriptor) -> bool:
    extensions: Any = field.GetOptions().Extensions
    return field_behavior_pb2.REQUIRED in extensions[field_behavior_pb2.field_behavior]


async def test_each_request_with_required_fields_is_looked_at() -> None:
    stated = {
        message.full_name
        for module in MODULES
        for message in module.DESCRIPTOR.message_types_by_name.values()
        if any(map(is_required, message.fields))
    }
    assert stated <= {request.DESCRIPTOR.full_name for request in VALID.values()}
    rpcs = {
        f"{service.name}/{method.name}"
        for module in MODULES
        for service in module.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    }
    assert rpcs == {rpc.partition(":")[0] for rpc in VALID}


@pytest.mark.parametrize("rpc", VALID)
async def test_a_request_needs_its_required_fields_and_no_others(doors: Doors, rpc: str) -> None:
    assert await doors.failure(rpc) is None
    for field in VALID[rpc].DESCRIPTOR.fields:
        failure = await doors.failure(rpc, field.name)
        if not is_required(field):
            assert failure is None, field.full_name
            continue
        assert failure is not None, field.full_name
        assert failure.reason in {Reason.BAD_REQUEST, Reason.DUPLICATE_CALL_ID, Reason.SLOT_UNKNOWN}, field.full_name
        assert field.name in failure.message or field.name in failure.metadata.get("field", ""), field.full_name
