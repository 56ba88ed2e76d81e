"""A StreamCalls stream that is driven frame by frame: for loads that the SDK would pace, and for odd batches."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc

from slotmesh.codec import OCTET_STREAM
from slotmesh.runtime.duplex import read_frame
from slotmesh.v1 import call_pb2, router_service_pb2, router_service_pb2_grpc

Request = router_service_pb2.StreamCallsRequest
Response = router_service_pb2.StreamCallsResponse


class FrameStream:
    """One stream, opened. Its ids count up from 1."""

    def __init__(self, call: grpc.aio.StreamStreamCall[Request, Response], window: router_service_pb2.Window) -> None:
        self._call = call
        self.window = window
        """What may be unanswered."""
        self.next_id = 1

    async def send(self, payloads: Sequence[bytes], *, batch: int | None = None) -> range:
        """Writes one frame: batches of `batch` calls, or a single one; returns the ids."""
        ids = range(self.next_id, self.next_id + len(payloads))
        self.next_id = ids.stop
        size = batch or len(payloads)
        request = Request()
        for at in range(0, len(payloads), size):
            request.calls.batches.add(first_call_id=ids[at], payloads=payloads[at : at + size])
        await self._call.write(request)
        return ids

    async def read(self) -> Response | None:
        """The next frame; None at the end."""
        return await read_frame(self._call)


@asynccontextmanager
async def frame_stream(
    channel: grpc.aio.Channel, endpoint: str, method: str, **options: Any
) -> AsyncIterator[FrameStream]:
    """An opened stream with these options; what is unanswered when the block is left is cancelled."""
    stub: Any = router_service_pb2_grpc.RouterServiceStub(channel)
    call = stub.StreamCalls(wait_for_ready=True)
    try:
        wire = call_pb2.CallOptions(method=method, content_type=OCTET_STREAM, **options)
        await call.write(Request(open=router_service_pb2.OpenStream(endpoint=endpoint, default_options=wire)))
        opened = await read_frame(call)
        if opened is None or opened.WhichOneof("frame") != "opened":
            raise ValueError(f"expected the frame `opened`, got {opened}")
        yield FrameStream(call, opened.opened.window)
    finally:
        call.cancel()
