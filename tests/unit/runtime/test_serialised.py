"""Frames that are written as bytes."""

from __future__ import annotations

from typing import Any

import pytest

from slotmesh.runtime.loop_slices import StepQueue
from slotmesh.server.guards import guard
from slotmesh.streams.spliced_frames import SplicedFrame
from slotmesh.transport.duplex import write_as_bytes, writing_bytes
from slotmesh.v1 import call_pb2, router_service_pb2, router_service_pb2_grpc

FRAME = router_service_pb2.StreamCallsResponse(heartbeat=call_pb2.Heartbeat(echoed_stamp=7))
SPLICED = SplicedFrame(
    router_service_pb2.StreamCallsResponse(chunk=call_pb2.Chunk(call_id=5)),
    (router_service_pb2.StreamCallsResponse.CHUNK_FIELD_NUMBER, call_pb2.Chunk.DATA_FIELD_NUMBER),
    [b"data"],
)


class Registered:
    """Takes the handlers of a service."""

    handlers: dict[str, Any]

    def add_generic_rpc_handlers(self, handlers: object) -> None:
        """The unguarded form: left out."""

    def add_registered_method_handlers(self, _: str, handlers: dict[str, Any]) -> None:
        self.handlers = handlers


class Usual:
    """Is not called."""

    Call = CallStreaming = Broadcast = DescribeEndpoints = None

    async def StreamCalls(self, *_: object) -> None: ...


class Servicer(Usual):
    @writing_bytes
    async def StreamCalls(self, *_: object) -> None: ...


class Context:
    def __init__(self) -> None:
        self.written: list[object] = []

    async def write(self, frame: object) -> None:
        self.written.append(frame)


@pytest.mark.asyncio
async def test_the_transport_gets_bytes_and_sends_them_as_they_are() -> None:
    context, server = Context(), Registered()
    await write_as_bytes(context)(FRAME)  # type: ignore[arg-type]
    assert context.written == [FRAME.SerializeToString()]
    register: Any = router_service_pb2_grpc.add_RouterServiceServicer_to_server
    for servicer, is_serialised in ((Servicer(), False), (Usual(), True)):
        register(servicer, server)
        handler: Any = guard(server.handlers["StreamCalls"], method="m", server="s", turns=StepQueue())
        serialise = handler.response_serializer
        assert (serialise is not None) == is_serialised
        for frame in (FRAME, SPLICED) if is_serialised else ():
            assert serialise(frame) == frame.SerializeToString()
