"""One direct stream: the replica's side of a stream from a client that holds slots here.

Purpose: reads slots, calls, cancels and renewals, and writes each outcome as a frame of its own as soon as it is known.
To the engine the stream is one more link and outbox, without heartbeats: renewed leases replace them.
Invariants: when the stream ends in any way, its slots are released and their calls cancelled; after half-close it ends
OK once all calls have their outcome. Frames are written in the order of events. While more than `MAX_BACKLOG_BYTES` of
frames wait for a slow client, the replica does not read from it; each frame counts with the memory that it occupies.
Owner: the servicer's task of this stream.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import grpc

from replica_service.convert.runs import OPENED_AGAIN, UNKNOWN_FRAME
from replica_service.convert.slots import (
    Issuer,
    attachment_of,
    slot_call_of,
    slot_change_to_wire,
    slot_failure,
)
from replica_service.core.events import (
    AttachReceived,
    DetachReceived,
    ReportAttach,
    ReportDetached,
    SlotCallReceived,
    StreamRenewed,
)
from replica_service.core.failures import CUT_OFF, ENDED
from replica_service.core.runs import RouterPeer
from replica_service.shell.engine import Engine
from slotmesh.errors import Failure
from slotmesh.ids import STREAM_ID_BYTES, new_id
from slotmesh.names import overlong_endpoint
from slotmesh.runtime.clock import Clock
from slotmesh.security.identity import caller_name
from slotmesh.security.rpc_roles import callable_endpoints, slot_refusal
from slotmesh.status import to_exception
from slotmesh.transport.duplex import LAST_WRITE_S, Interruption, read_request
from slotmesh.transport.prompt_writer import PromptWriter
from slotmesh.v1 import direct_service_pb2
from slotmesh.version import VERSION

FRAME_BYTES = 512
"""Memory of a frame besides its payload."""

Response = direct_service_pb2.AttachResponse
_Result = direct_service_pb2.SlotCallResult


class AttachOutbox:
    """Writes outcomes of calls and changes of slots."""

    def __init__(self, writer: PromptWriter[Response], issuer: Issuer) -> None:
        """`issuer` names this replica."""
        self.issuer = issuer
        self._send: Callable[..., None] = writer.send

    def close(self) -> None:
        """Drops later outcomes: the status of the ended stream is the outcome of its open calls."""
        self._send = _drop

    def results(self, first: int, payloads: Sequence[bytes], size: int, content_type: str) -> None:
        del size, content_type  # the content type is the call's
        for call_id, payload in enumerate(payloads, first):
            self._send(Response(result=_Result(call_id=call_id, payload=payload)), FRAME_BYTES + len(payload))

    def done(self, first: int, count: int) -> None:
        """Writes successful ends without a result. Only calls without a reply have these, and they are refused."""
        for call_id in range(first, first + count):
            self._send(Response(result=_Result(call_id=call_id)), FRAME_BYTES)

    def failed(self, first: int, count: int, failure: Failure) -> None:
        # Routers retry calls that are cut off; these clients must be able to see that the replica ended.
        reported = ENDED if failure is CUT_OFF else failure
        for call_id in range(first, first + count):
            self._tell(slot_failure(call_id, reported))

    def refused(self, first: int, count: int, failure: Failure) -> None:
        """The client may send it elsewhere."""
        self.failed(first, count, failure)

    def slot_changed(self, change: ReportAttach | ReportDetached) -> None:
        """The stream holds a slot, or does so no longer."""
        self._tell(slot_change_to_wire(change))

    def tell_capacity(self) -> None:
        """Clients of direct streams have their slots, and do not choose by load."""

    def _tell(self, frame: Response) -> None:
        self._send(frame, FRAME_BYTES + frame.ByteSize())


def _drop(frame: Response, nbytes: int = 0) -> None:
    """Of a stream that ends."""


MAX_BACKLOG_BYTES = 4 * 1024 * 1024
"""Frames that wait for the transport before the client is not read from; half of them have left when it is again."""

AttachRequest = direct_service_pb2.AttachRequest
_GOING = direct_service_pb2.AttachGoAway(message="the replica drains")
_RENEWED = Response(renewed=direct_service_pb2.AttachedRenewed())


class AttachStream:
    """Brings a client's frames to the engine."""

    def __init__(self, engine: Engine, context: grpc.aio.ServicerContext[Any, Any], clock: Clock) -> None:
        self._engine = engine
        self._context = context
        self._now = clock.now
        self._identity, self._endpoints = caller_name(), callable_endpoints()
        self._writer: PromptWriter[Response] = PromptWriter(context.write)
        self._outbox = AttachOutbox(self._writer, engine.slots.issuer)
        self._link = RouterPeer(outbox=self._outbox, stream_id=new_id(STREAM_ID_BYTES))
        self._ended: Interruption[str] = Interruption()

    async def run(self) -> None:
        """Serves the client until one of the two ends the stream."""
        opened = direct_service_pb2.AttachOpened(version=VERSION, replica_id=self._engine.slots.issuer.replica_id)
        self._writer.send(Response(opened=opened))
        if self._engine.scheduler.draining:
            self.go_away()
        try:
            with self._ended:
                await self._read()
        finally:
            self._outbox.close()
            self._engine.leave(self._link)
            # gRPC refuses to end a stream while a write is under way.
            await asyncio.wait((asyncio.ensure_future(self._writer.drained()),), timeout=LAST_WRITE_S)
            self._writer.stop()

    def go_away(self) -> None:
        """The replica drains: the client is to give its slots back, once its calls have ended."""
        self._writer.send(Response(go_away=_GOING))

    def end(self) -> None:
        """The replica has nothing more to say."""
        self._ended.end("the replica ends")

    async def _read(self) -> None:
        writer = self._writer
        while (request := await read_request(self._context)) is not None:
            self._handle(request)
            if writer.backlog > MAX_BACKLOG_BYTES:
                await writer.room(MAX_BACKLOG_BYTES // 2)
        await self._engine.answered(self._link)

    def _attachment_of(self, wire: direct_service_pb2.AttachSlot) -> AttachReceived | Failure:
        if failure := overlong_endpoint(wire.endpoint) or slot_refusal(wire.endpoint):
            return failure
        issuer = self._engine.slots.issuer
        return attachment_of(wire, self._link, issuer, self._identity, self._endpoints)

    def _handle(self, request: AttachRequest) -> None:
        match request.WhichOneof("frame"):
            case "call":
                wire = request.call
                run, failure = slot_call_of(wire, self._link, self._now())
                if failure is None:
                    self._engine.post(SlotCallReceived(run, wire.slot_id))
                else:
                    self._engine.outcomes.failed(run, 0, 1, failure)
            case "renew":
                self._engine.post(StreamRenewed(self._link))
                self._writer.send(_RENEWED, FRAME_BYTES)
            case "cancel":
                self._engine.cancel(self._link, [(request.cancel.call_id, request.cancel.call_id)])
            case "attach":
                number = request.attach.slot_id
                event = self._attachment_of(request.attach)
                if isinstance(event, Failure):
                    self._link.outbox.slot_changed(ReportAttach(self._link, number, event))
                else:
                    self._engine.post(event)
            case "detach":
                self._engine.post(DetachReceived(self._link, request.detach.slot_id))
            case "open":
                raise to_exception(OPENED_AGAIN)
            case None:
                raise to_exception(UNKNOWN_FRAME)
