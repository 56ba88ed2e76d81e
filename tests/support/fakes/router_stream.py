"""One StreamCalls stream of the scripted router: what it says, and what clients have to keep to on it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

from slotmesh.convert.batches import count_of, ids_to_wire, list_of
from slotmesh.errors import Failure
from slotmesh.status import to_wire
from slotmesh.streams.arriving_payloads import BadChunk
from slotmesh.streams.limits import CHUNK_BYTES, MAX_FRAME_BYTES
from slotmesh.transport.pump import StreamPump
from slotmesh.v1 import call_pb2, router_service_pb2
from tests.support.fakes.chunks import Announced, in_chunks
from tests.support.fakes.generator import FakeGenerator
from tests.support.fakes.router_batches import CANCELLED, Batch

if TYPE_CHECKING:
    from tests.support.fakes.router import FakeRouter

Response = router_service_pb2.StreamCallsResponse


@dataclass(eq=False)
class FakeStream:
    """One StreamCalls stream."""

    router: FakeRouter
    opening: router_service_pb2.OpenStream
    pump: StreamPump[Response]
    outgoing: deque[Response] = field(default_factory=deque)
    unanswered: dict[int, int] = field(default_factory=dict)
    """Payload bytes by id."""
    taken_back: set[int] = field(default_factory=set)
    last_id: int = 0
    frames: int = 0
    frame_no: int = 0
    acked: int = 0
    to_resend: set[int] = field(default_factory=set)
    """Ids that were announced as unanswered, and have not come again."""
    has_said_all: bool = False
    """The client has said that no more will come again."""
    announced: Announced[Batch] = field(default_factory=Announced)
    generators: dict[int, FakeGenerator] = field(default_factory=dict)
    """Of calls that stream, by id; those that have ended, too."""
    is_cut: bool = False
    """Breaks once everything is written."""
    ending: Failure | None = None
    """What it breaks with; None: as if the router was killed."""
    broken: asyncio.Event = field(default_factory=asyncio.Event)
    half_closed: bool = False
    all_answered: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def endpoint(self) -> str:
        return self.opening.endpoint

    def say(self, response: Response) -> None:
        self.outgoing.append(response)
        self.pump.wake()

    def next_frame(self) -> Response | None:
        """One frame; neighbouring results leave together, as a real router's do."""
        if self.router.mute:
            return None
        if not self.outgoing:
            if self.is_cut:
                self.broken.set()
            return None
        response = self.outgoing.popleft()
        if response.WhichOneof("frame") == "results":
            while self.outgoing and self.outgoing[0].WhichOneof("frame") == "results":
                response.results.MergeFrom(self.outgoing.popleft().results)
            self.frame_no += 1
            response.results.frame_no = self.frame_no
        return response

    def accept(self, frame: router_service_pb2.CallFrame, defaults: call_pb2.CallOptions) -> None:
        self.frames += 1
        if self.has_said_all and (frame.resent_all or any(wire.resend for wire in frame.batches)):
            self._breach("calls are sent again after the last one")
        self.has_said_all = self.has_said_all or frame.resent_all
        for wire in frame.batches:
            options = wire.options if wire.HasField("options") else defaults
            ids = list(wire.call_ids) or range(wire.first_call_id, wire.first_call_id + count_of(wire))
            age_s = wire.age.ToNanoseconds() / 1e9
            payloads, keys = list_of(wire), list(wire.ordering_keys)
            chunked = list(wire.chunked_sizes) or [0] * len(payloads)
            sizes = [size or len(payload) for size, payload in zip(chunked, payloads, strict=True)]
            batch = Batch(self.frames, ids, options, payloads, wire.resend, age_s, keys, sizes)
            self._check(batch)
            self.router.arrivals += [f"call {call_id}" for call_id in ids]
            if not self.announced.add(batch, list(ids), payloads, chunked):
                self.router.accept(self, batch)

    def accept_chunk(self, chunk: call_pb2.Chunk) -> None:
        self.router.arrivals.append(f"chunk {chunk.call_id}")
        try:
            if (batch := self.announced.accept(chunk)) is not None:
                self.router.accept(self, batch)
        except BadChunk as error:
            self._breach(f"chunk: {error}")

    def cancel(self, frame: router_service_pb2.CancelCalls) -> None:
        ranges = [range(each.first, each.last + 1) for each in frame.calls]
        self.router.cancels.append(ranges)
        ids = [call_id for each in ranges for call_id in each]
        self._check_cancel(ids)
        for call_id in ids:
            self.announced.forget(call_id)
        if not self.router.deaf_to_cancels and (left := [call_id for call_id in ids if call_id in self.unanswered]):
            self.fail(left, CANCELLED)

    def answer(self, batch: Batch, outcomes: Sequence[bytes | Failure]) -> None:
        """Results and failures of a batch, in one frame. Of calls that want no reply, that they have ended."""
        ids = self._before_the_cut(batch.ids)
        if self.router.lose_results or not ids:
            return
        if batch.options.stream.no_reply:
            self.end_ids(ids)
        elif batch.options.stream.each_value:
            for call_id, payload in zip(ids, batch.payloads, strict=False):
                self.generators[call_id] = FakeGenerator(self.router.yields(payload), batch.options.content_type)
                self._step(call_id)
        else:
            self.answer_ids(ids, outcomes[: len(ids)], batch.options.content_type)

    def end_ids(self, ids: Sequence[int]) -> None:
        """These calls have ended, well or not."""
        frame = call_pb2.ResultFrame()
        for call_id in ids:
            self.unanswered.pop(call_id, None)
            if frame.done and frame.done[-1].last == call_id - 1:
                frame.done[-1].last = call_id
            else:
                frame.done.add(first=call_id, last=call_id)
        self._answered(Response(results=frame))

    def answer_ids(self, ids: Sequence[int], outcomes: Sequence[bytes | Failure], content_type: str = "") -> None:
        """Of calls that were answered already, too: as a client must be able to bear."""
        frame = call_pb2.ResultFrame()
        results = call_pb2.ResultBatch(content_type=content_type)
        takes_chunks = "chunks" in self.opening.features
        for call_id, outcome in zip(ids, outcomes, strict=True):
            self.unanswered.pop(call_id, None)
            if isinstance(outcome, Failure):
                frame.errors.add(calls=ids_to_wire([call_id]), failure=to_wire(outcome))
            else:
                results.call_ids.append(call_id)
                is_large = takes_chunks and len(outcome) > CHUNK_BYTES
                for chunk in in_chunks(call_id, outcome) if is_large else ():
                    self.say(chunk)
                results.payloads.append(b"" if is_large else outcome)
                results.chunked_sizes.append(len(outcome) if is_large else 0)
        if not any(results.chunked_sizes):
            results.ClearField("chunked_sizes")
        if results.call_ids:
            frame.batches.append(results)
        self._answered(Response(results=frame))

    def say_values(self, ids: Sequence[int], values: Sequence[bytes], content_type: str = "") -> None:
        """Values of calls that go on, whatever calls they are."""
        batch = call_pb2.ResultBatch(call_ids=ids, payloads=values, content_type=content_type, partial=True)
        self.say(Response(results=call_pb2.ResultFrame(batches=[batch])))

    def take(self, frame: call_pb2.TakeItems) -> None:
        """The client has taken values: their handlers go on."""
        self.router.takes.append(dict(zip(frame.call_ids, frame.counts, strict=True)))
        for call_id, count in zip(frame.call_ids, frame.counts, strict=True):
            generator = self.generators.get(call_id)
            if generator is None or count < 1 or not generator.take(count):
                self._breach(f"{count} values of call {call_id} taken")
            elif call_id in self.unanswered:
                self._step(call_id)

    def _step(self, call_id: int) -> None:
        generator = self.generators[call_id]
        if values := generator.run():
            self.say_values([call_id] * len(values), values, generator.content_type)
        if generator.failure is not None:
            self.fail([call_id], generator.failure)
        elif generator.is_over:
            self.end_ids([call_id])

    def fail(self, ids: Sequence[int], failure: Failure) -> None:
        """One failure for all of them, as one entry."""
        for call_id in ids:
            self.unanswered.pop(call_id, None)
        errors = [call_pb2.CallErrors(calls=ids_to_wire(ids), failure=to_wire(failure))]
        self._answered(Response(results=call_pb2.ResultFrame(errors=errors)))

    def reject(self, batch: Batch, failure: Failure) -> None:
        for call_id in batch.ids:
            self.unanswered.pop(call_id, None)
        rejected = router_service_pb2.RejectedBatch(failure=to_wire(failure))
        if isinstance(batch.ids, range):
            rejected.first_call_id, rejected.count = batch.ids[0], len(batch.ids)
        else:
            rejected.call_ids.extend(batch.ids)
        self._answered(Response(rejected=rejected))

    def ack(self, through_frame: int) -> None:
        self.router.acks.append(through_frame)
        if not self.acked < through_frame <= self.frame_no:
            self._breach(f"ack {through_frame} after {self.acked}, {self.frame_no} frames were sent")
        self.acked = through_frame

    def beat(self, heartbeat: call_pb2.Heartbeat) -> None:
        self.router.heartbeats += 1
        if not self.opening.session_id or self.half_closed:
            self._breach("a heartbeat where none belongs")
        self.say(Response(heartbeat=call_pb2.Heartbeat(echoed_stamp=heartbeat.stamp)))

    def end(self, failure: Failure | None = None) -> None:
        """Ends at once, whatever is unanswered."""
        self.ending = failure
        self.broken.set()

    def finish(self) -> None:
        self.half_closed = True
        self._end_if_answered()

    def _answered(self, response: Response) -> None:
        self.say(response)
        self._end_if_answered()

    def _end_if_answered(self) -> None:
        if self.half_closed and not self.unanswered:
            self.pump.close()

    def _before_the_cut(self, ids: Sequence[int]) -> Sequence[int]:
        """What still gets through of these outcomes."""
        left = self.router.cut_after
        if left is None:
            return ids
        self.router.cut_after = max(left - len(ids), 0)
        if len(ids) >= left:
            self.is_cut = True
            self.pump.wake()
        return ids[:left]

    def _check(self, batch: Batch) -> None:
        if any(later <= earlier for earlier, later in pairwise((self.last_id, *batch.ids))):
            self._breach(f"ids {batch.ids} after {self.last_id}")
        self.last_id = batch.ids[-1]
        if batch.resend and not self.to_resend.issuperset(batch.ids):
            self._breach(f"ids {batch.ids} are sent again, and were not announced")
        if not batch.resend and self.to_resend:
            self._breach(f"new calls before {self.to_resend} were sent again")
        if not batch.resend and self.opening.unanswered and not self.has_said_all:
            self._breach("new calls before it was said that all were sent again")
        self.to_resend.difference_update(batch.ids)
        self.unanswered.update(zip(batch.ids, batch.sizes, strict=True))
        if batch.keys and len(batch.keys) != len(batch.ids):
            self._breach(f"{len(batch.keys)} ordering keys for {len(batch.ids)} calls")
        whole = sum(len(payload) for payload in batch.payloads if len(payload) > CHUNK_BYTES)
        if whole > MAX_FRAME_BYTES:
            self._breach(f"{whole} bytes of large payloads arrived whole")
        calls, nbytes = len(self.unanswered), sum(self.unanswered.values())
        nbytes -= max((size for size in self.unanswered.values() if size > self.router.window_bytes), default=0)
        if calls > self.router.window_calls or nbytes > self.router.window_bytes:
            self._breach(f"{calls} calls of {nbytes} bytes unanswered")

    def _check_cancel(self, ids: list[int]) -> None:
        for call_id in ids:
            if not 0 < call_id <= self.last_id:
                self._breach(f"call {call_id} taken back before it was sent")
            if call_id in self.taken_back:
                self._breach(f"call {call_id} taken back twice")
            self.taken_back.add(call_id)

    def _breach(self, what: str) -> None:
        self.router.breaches.append(what)
