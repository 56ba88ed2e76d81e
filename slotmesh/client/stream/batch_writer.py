"""Calls as batches of a frame, and their large payloads as chunks.

Purpose: the one place that knows the form of a batch on the wire. The cost is per part; for a column, a key for each
call.
Invariant: a batch states the options of its calls' specs.
Owner: the `RouterLink` of one connection.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from slotmesh.client.calls.call_spec import write_traces
from slotmesh.convert.batches import FramePayloads
from slotmesh.streams.chunks import ChunkTurns
from slotmesh.streams.limits import CHUNK_BYTES
from slotmesh.streams.spliced_frames import spliced
from slotmesh.v1 import call_pb2, router_service_pb2

if TYPE_CHECKING:
    from slotmesh.client.calls.call_spec import CallSpec
    from slotmesh.client.calls.sent_parts import SentPart
    from slotmesh.client.stream.resends import ResentCalls

Request = router_service_pb2.StreamCallsRequest
_CHUNK_DATA: Final = (Request.CHUNK_FIELD_NUMBER, call_pb2.Chunk.DATA_FIELD_NUMBER)
_CALL_PAYLOADS: Final = (
    Request.CALLS_FIELD_NUMBER,
    router_service_pb2.CallFrame.BATCHES_FIELD_NUMBER,
    router_service_pb2.CallBatch.PAYLOADS_FIELD_NUMBER,
)


class OutgoingChunks:
    """What is left of large payloads, after their calls were announced.

    Invariants: a call that has its outcome, or was cancelled, sends no further chunk. A broken connection leaves
    nothing behind: the next one announces its calls again.
    """

    __slots__ = ("left", "streaming_only", "turns")

    def __init__(self) -> None:
        self.turns: ChunkTurns[tuple[SentPart, int]] = ChunkTurns()
        """Owners are calls: their part, and their place there."""
        self.left = self.turns.rota
        """Read directly, for each frame: empty if nothing is left."""
        self.streaming_only = False
        """The session has moved: all other calls leave over another stream."""

    def add(self, part: SentPart, call_id: int) -> None:
        """A call of this part was announced."""
        place = call_id - part.first
        self.turns.add((part, place), part.payloads[place])

    def take(self) -> Request | None:
        """The next chunk; None if nothing is left."""
        while self.left:
            chunk = self.turns.take()
            part, place = chunk.owner
            if part.is_wanted(place) and (part.spec.streaming or not self.streaming_only):
                wire = call_pb2.Chunk(call_id=part.first + place, offset=chunk.offset, total=chunk.total)
                return spliced(Request(chunk=wire), _CHUNK_DATA, [chunk.data])
            self.turns.discard([chunk.owner])
        return None


_ordering_key = attrgetter("ordering_key")


class BatchWriter:
    """Appends batches to frames, and what is too large for them to the chunks that follow."""

    def __init__(self, default_wire: call_pb2.CallOptions | None) -> None:
        """`default_wire`: the options that the stream was opened with."""
        self._default_wire = default_wire
        self.chunks = OutgoingChunks()
        """Announced payloads that have not left."""
        self._payloads = FramePayloads(0)

    def begin(self, parts: int) -> None:
        """A frame begins that has this number of parts."""
        self._payloads = FramePayloads(parts)

    def finished(self, request: Request) -> Request:
        """The frame with all that was added, ready to be written."""
        beside = self._payloads.beside
        return spliced(request, _CALL_PAYLOADS, beside) if beside else request

    def add(self, frame: router_service_pb2.CallFrame, part: SentPart) -> None:
        """Calls that leave for the first time."""
        if part.made_at is not None:
            ids = range(part.first, part.first + part.count)
            self._shorten(self._add(frame, part, ids, part.payloads, part.specs), part)
            return
        first, payloads = part.first, part.payloads
        if part.specs is None and not part.spec.traced and part.nbytes <= CHUNK_BYTES:
            wire = part.spec.wire
            options = None if wire is self._default_wire else wire
            batch = frame.batches.add(first_call_id=first, options=options)
            self._payloads.put(batch, payloads, as_block=True, most_bytes=part.nbytes)
        else:
            self._add(frame, part, range(first, first + part.count), payloads, part.specs)

    def add_again(self, frame: router_service_pb2.CallFrame, resent: ResentCalls, now: float) -> None:
        """Calls that an earlier connection has sent."""
        ids = range(resent.ids[0], resent.ids[-1] + 1) if resent.consecutive else resent.ids
        batch = self._add(frame, resent.part, ids, resent.payloads, resent.specs)
        batch.resend = True
        batch.age.FromNanoseconds(round((now - resent.part.since) * 1e9))
        if resent.part.roster is not None:
            batch.first_roster.CopyFrom(resent.part.roster)

    def _shorten(self, batch: router_service_pb2.CallBatch, part: SentPart) -> None:
        """Subtracts the time that calls have waited here from their timeouts."""
        if not batch.HasField("options") and self._default_wire is not None:
            batch.options.CopyFrom(self._default_wire)
        left_s = max(0.0, part.since + (part.spec.options.timeout_s or 0.0) - part.sent_at)
        batch.options.timeout.FromNanoseconds(round(left_s * 1e9))

    def _add(
        self,
        frame: router_service_pb2.CallFrame,
        part: SentPart,
        ids: Sequence[int],
        payloads: Sequence[bytes],
        specs: Sequence[CallSpec] | None,
    ) -> router_service_pb2.CallBatch:
        batch = frame.batches.add()
        wire = part.wire
        if wire is not self._default_wire:
            batch.options.CopyFrom(wire)
        if specs is not None:
            batch.ordering_keys.extend(map(_ordering_key, specs))
        if isinstance(ids, range):
            batch.first_call_id = ids[0]
        else:
            batch.call_ids.extend(ids)
        for at in self._payloads.put(batch, payloads, as_block=True, most_bytes=part.nbytes):
            self.chunks.add(part, ids[at])
        if part.spec.traced:
            write_traces(batch, payloads)
        return batch
