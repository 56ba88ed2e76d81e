"""A StreamCalls stream that is driven frame by frame: for odd loads, and for streams that belong to no session."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc

from slotmesh.codec import OCTET_STREAM
from slotmesh.transport.duplex import read_frame
from slotmesh.v1 import call_pb2, router_service_pb2, router_service_pb2_grpc

Request = router_service_pb2.StreamCallsRequest
Response = router_service_pb2.StreamCallsResponse


class FrameStream:
    """One stream, opened. Its ids count up from 1."""

    def __init__(
        self, call: grpc.aio.StreamStreamCall[Request, Response], opened: router_service_pb2.StreamOpened
    ) -> None:
        self._call = call
        self.window = opened.window
        """What may be unanswered."""
        self.max_payload_bytes = opened.max_payload_bytes
        """The largest payload of a call."""
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

    async def acknowledge(self, through_frame: int) -> None:
        """Says that the frames of results up to this one have come. Only in a session."""
        await self._call.write(Request(ack=router_service_pb2.AckResults(through_frame=through_frame)))

    async def beat(self) -> None:
        """A sign of life, which the router answers."""
        await self._call.write(Request(heartbeat=call_pb2.Heartbeat(stamp=time.monotonic_ns())))

    async def read(self) -> Response | None:
        """The next frame; None at the end."""
        return await read_frame(self._call)


@asynccontextmanager
async def frame_stream(
    channel: grpc.aio.Channel, endpoint: str, method: str, *, in_session: bool = False, **options: Any
) -> AsyncIterator[FrameStream]:
    """An opened stream with these options; what is unanswered when the block is left is cancelled.

    `in_session`: it is the first connection of a session, so that replicas keep what was not acknowledged.
    """
    stub: Any = router_service_pb2_grpc.RouterServiceStub(channel)
    call = stub.StreamCalls(wait_for_ready=True)
    try:
        wire = call_pb2.CallOptions(method=method, content_type=OCTET_STREAM, **options)
        opening = router_service_pb2.OpenStream(endpoint=endpoint, default_options=wire)
        if in_session:
            opening.session_id, opening.epoch = secrets.token_hex(16), 1
        await call.write(Request(open=opening))
        opened = await read_frame(call)
        if opened is None or opened.WhichOneof("frame") != "opened":
            raise ValueError(f"expected the frame `opened`, got {opened}")
        yield FrameStream(call, opened.opened)
    finally:
        call.cancel()
