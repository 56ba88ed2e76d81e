"""One connected StreamCalls stream: frames of calls down, outcomes up.

Purpose: keeps the window, correlates answers, sends again what an earlier stream of the session has left unanswered.
One write in flight; what gathers meanwhile is the next frame, and a few calls wait for a moment where more are about to
join (`slotmesh.pacing`).
Invariants: unanswered calls and bytes stay within the router's newest window (one call that is larger than the window
is allowed beside the others, or alone where the router does not know that); what is sent again goes before all else; a
call that was taken back counts until its outcome is there, which nobody hears.
When `run` returns, every call that was sent and not answered is still pending.
Owner: the endpoint's `Connection`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import grpc

from slotmesh.client.arriving import ArrivingValues
from slotmesh.client.batches import BatchWriter
from slotmesh.client.incoming import PAYLOAD_LOST, IncomingChunks
from slotmesh.client.outbox import FRAME_CALLS, LargeCalls, Outbox
from slotmesh.client.outcomes import deliver, deliver_scattered, fail, finish, refuse, refuse_sent
from slotmesh.client.pending import PendingCalls
from slotmesh.client.pulse import Pulse
from slotmesh.client.recall import RecallWatch
from slotmesh.client.resend import Resends
from slotmesh.client.rosters import Rosters
from slotmesh.client.scattered import are_scattered, ascending
from slotmesh.errors import Executed, Failure, Reason
from slotmesh.frame_costs import FULL_CALLS
from slotmesh.pacing import most_calls
from slotmesh.runtime.pacer import Pacer
from slotmesh.runtime.pump import StreamPump
from slotmesh.status import from_wire
from slotmesh.v1 import call_pb2, router_service_pb2

if TYPE_CHECKING:
    from slotmesh.client.spec import CallSpec

Request = router_service_pb2.StreamCallsRequest
Response = router_service_pb2.StreamCallsResponse
StreamCall = grpc.aio.StreamStreamCall[Request, Response]

_BEGUN_ELSEWHERE = frozenset({Reason.SESSION_FENCED, Reason.STALE_TABLE})
"""What a router that the session has left says of calls that it cannot begin any more."""

_TRANSPORT = (grpc.RpcError, grpc.aio.UsageError, grpc.aio.InternalError, asyncio.InvalidStateError)


class RouterLink:
    """The client's side of one stream, after `opened`."""

    def __init__(
        self,
        call: StreamCall,
        outbox: Outbox,
        pending: PendingCalls,
        batches: BatchWriter,
        rosters: Rosters,
        *,
        in_session: bool,
        on_leaving: Callable[[Sequence[str]], None],
        on_unstarted: Callable[[CallSpec, bytes, Any, float], None],
    ) -> None:
        """`batches` writes them as this router understands them; `rosters` are what its client has acknowledged.

        `in_session`: the router keeps sessions, so that what is pending is sent again here; without, nothing is
        pending. `on_leaving` hears that the router leaves, and of the routers that it names instead; `on_unstarted`, of
        calls that are to be made again elsewhere: what they are, their payload, who waits, and since when.
        """
        self._call = call
        self._outbox = outbox
        self._batches = batches
        self._rosters = rosters
        self._roster: router_service_pb2.RosterVersion | None = None
        """What is to be acknowledged."""
        self._incoming = IncomingChunks(pending)
        self._chunk_left_last = False
        self._pending = pending
        self._on_leaving = on_leaving
        self._on_unstarted = on_unstarted
        self._window_calls = 1_024
        self._window_bytes = 4 * 1024 * 1024
        self._large = 0, 0
        """Id and bytes of the newest call that left here with more bytes than the window, beside the others."""
        self._pump: StreamPump[Request] = StreamPump(call.write, self._next_frame)
        self._pacer = Pacer(self._pump.wake)
        self._recalls = RecallWatch(pending, self._pump.wake)
        self._values = ArrivingValues(pending, self._pump.wake)
        self._resends = Resends(pending.parts())
        self._first_new_id = pending.next_id
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._pulse = Pulse(self._pump.wake, self._on_silence) if in_session else None
        self._leaving = False
        self._lingers = False
        self._closing = False
        self.silent = False
        """The router is gone without a word."""
        self.answered = 0
        """Calls that got their outcome over this link."""
        if self._resends:
            self._pump.wake()

    @property
    def in_session(self) -> bool:
        """Whether another stream can go on where this one ends."""
        return self._pulse is not None

    def wake(self) -> None:
        """Calls wait in the outbox."""
        self._pump.wake()

    def finish(self) -> None:
        """Half-closes once there is nothing more to say; `run` returns when all was answered."""
        self._closing = True
        self._pacer.hurry()
        self._look_for_recalls()
        self._half_close_if_over()

    def take_back_all(self) -> None:
        """Nobody waits for what is pending any more: the client goes."""
        if not self._resends:
            self._recalls.take_back_all()

    def end(self) -> None:
        """`run` returns at once: another stream goes on."""
        if not self._ended.done():
            self._ended.set_result(None)

    def linger(self) -> None:
        """Another stream goes on, but for calls that cannot move: `run` returns when those have ended here, too."""
        self._lingers = self._batches.chunks.streaming_only = True
        self._roster = None  # this router may use no replica that the next one may not know of
        if not self._pending.calls:
            self.end()

    async def run(self) -> None:
        """Moves frames until the stream ends. Raises what ended it, unless that is an orderly end or was asked for."""
        reader = asyncio.create_task(self._read(), name="slotmesh-client-read")
        writer = asyncio.create_task(self._write(), name="slotmesh-client-write")
        try:
            await asyncio.wait((reader, writer, self._ended), return_when=asyncio.FIRST_COMPLETED)
            if not reader.done() and writer.done():
                error = writer.exception()
                if error is not None and not isinstance(error, _TRANSPORT):
                    raise error
                # Half-closed, then answers still come; or the transport broke, then the reader knows why.
                await asyncio.wait((reader, self._ended), return_when=asyncio.FIRST_COMPLETED)
            if reader.done():
                await reader
        finally:
            self.close()
            for task in (reader, writer):
                task.cancel()
            await asyncio.gather(reader, writer, return_exceptions=True)

    def close(self) -> None:
        """Ends the stream, if it has not ended."""
        self._recalls.stop()
        self._pacer.stop()
        if self._pulse is not None:
            self._pulse.stop()
        self._call.cancel()

    def accept(self, response: Response) -> None:
        """A frame from the router."""
        pulse = self._pulse
        if pulse is not None:
            pulse.heard = True
        match response.WhichOneof("frame"):
            case "results":
                self._accept_results(response.results)
                if pulse is not None and not self._lingers:
                    pulse.delivered(response.results.frame_no)
            case "chunk":
                self._incoming.add(response.chunk)
                return
            case "rejected":
                self._accept_rejected(response.rejected)
            case "opened":
                self._accept_opened(response.opened)
            case "roster":
                self._learn_roster(response.roster)
            case "window":
                self._set_window(response.window)
            case "heartbeat":
                if pulse is not None:
                    pulse.beaten(response.heartbeat)
                return
            case "go_away":
                self._leave(response.go_away)
            case _:
                return  # clients ignore frames they do not know
        self._go_on()

    def _go_on(self) -> None:
        """There may be room now, or nothing left to say."""
        if self._lingers:
            if not self._pending.calls:
                self.end()
            return
        if self._outbox or self._resends:
            self._pump.wake()
        if self._closing or self._leaving:
            self._half_close_if_over()

    # -- in --------------------------------------------------------------------------------------------------------

    def _accept_opened(self, opened: router_service_pb2.StreamOpened) -> None:
        self._set_window(opened.window)
        if self.in_session and opened.HasField("roster"):
            self._learn_roster(opened.roster)

    async def _read(self) -> None:
        read, accept = self._call.read, self.accept
        while isinstance(response := await read(), Response):
            accept(response)

    def _accept_results(self, frame: call_pb2.ResultFrame) -> None:
        pending = self._pending
        before = pending.calls
        for batch in frame.batches:
            if batch.partial:
                self._accept_values(batch)
                continue
            ids, payloads, content_type = batch.call_ids[:], batch.payloads[:], batch.content_type
            if len(ids) != len(payloads):
                raise ValueError(f"a batch of {len(ids)} ids with {len(payloads)} payloads")
            if sizes := batch.chunked_sizes[:]:
                for lost in self._incoming.complete(ids, payloads, sizes):
                    self._fail([lost], PAYLOAD_LOST)
            if are_scattered(ids):
                ids, payloads = ascending(ids, payloads)
                for part, places, start in pending.settle_scattered(ids):
                    deliver_scattered(part, places, payloads[start : start + len(places)], content_type)
                    part.settled_places(places)
                continue
            for part, at, start, count in pending.settle(ids):
                deliver(part, at, payloads[start : start + count], content_type)
                part.settled(at, count)
        for errors in frame.errors:
            self._fail(errors.call_ids[:], from_wire(errors.failure))
        for ended in frame.done:
            for part, at, _, count in pending.settle(pending.ids_within(ended.first, ended.last)):
                finish(part, at, count)
                part.settled(at, count)
        self.answered += before - pending.calls

    def _accept_values(self, batch: call_pb2.ResultBatch) -> None:
        """Of calls that go on."""
        ids, payloads = batch.call_ids[:], batch.payloads[:]
        if len(ids) != len(payloads):
            raise ValueError(f"{len(ids)} ids with {len(payloads)} values")
        if sizes := batch.chunked_sizes[:]:
            for lost in self._incoming.complete(ids, payloads, sizes):
                self._values.lose(lost, PAYLOAD_LOST)
        self._values.accept(ids, payloads, batch.content_type)

    def _accept_rejected(self, rejected: router_service_pb2.RejectedBatch) -> None:
        last = rejected.first_call_id + rejected.count - 1
        ids = rejected.call_ids[:] or self._pending.ids_within(rejected.first_call_id, last)
        failure = from_wire(rejected.failure)
        if ids and ids[0] < self._first_new_id and failure.executed is Executed.NO:
            # True of this sending, but an earlier router had these calls, too.
            failure = replace(failure, executed=Executed.UNKNOWN)
        self._fail(ids, failure)

    def _fail(self, ids: list[int], failure: Failure) -> None:
        told = False
        self._incoming.forget(ids)
        if self._lingers and failure.reason in _BEGUN_ELSEWHERE and failure.executed is Executed.NO:
            ids = self._send_elsewhere(ids)
        for part, at, _, count in self._pending.settle(ids):
            fail(part, at, count, failure, told=told)
            part.settled(at, count)
            told = True

    def _send_elsewhere(self, ids: list[int]) -> list[int]:
        """Makes calls anew that had not started when the session went on. Returns the rest.

        Which is lanes' calls, too: later ones of their lane may have run by now.
        """
        left: list[int] = []
        for call_id in ids:
            found = self._pending.find(call_id)
            if found is None or found[0].spec.options.ordering_key or not found[0].is_wanted(found[1]):
                left.append(call_id)
                continue
            part, place = found
            payload, sink = part.payloads[place], part.sinks[place]
            for _, at, _, count in self._pending.settle([call_id]):
                part.settled(at, count)
            self._on_unstarted(part.spec, payload, sink, part.since)
        return left

    def _set_window(self, window: router_service_pb2.Window) -> None:
        self._window_calls = max(window.calls, 1)
        self._window_bytes = max(window.bytes, 1)

    def _learn_roster(self, version: router_service_pb2.RosterVersion) -> None:
        if not self._lingers:
            self._roster = version
            self._pump.wake()

    def _leave(self, go_away: call_pb2.GoAway) -> None:
        if self._leaving:
            return
        self._leaving = True
        self._look_for_recalls()
        self._on_leaving(go_away.alternates[:])

    def _on_silence(self) -> None:
        self.silent = True
        self.end()

    # -- out -------------------------------------------------------------------------------------------------------

    async def _write(self) -> None:
        await self._pump.run()
        await self._call.done_writing()

    def _next_frame(self) -> Request | None:
        """A chunk leaves at most between two other frames, if there are others."""
        chunks = self._batches.chunks
        if not chunks:
            return self._next_other_frame()
        frame = self._next_other_frame() if self._chunk_left_last else None
        if frame is None and (chunk := chunks.take()) is not None:
            frame = Request(chunk=chunk)
            self._chunk_left_last = True
            return frame
        self._chunk_left_last = False
        return frame or self._next_other_frame()

    def _next_other_frame(self) -> Request | None:
        if self._roster is not None:
            return self._acknowledgement(self._roster)
        if recalled := self._recalls.take_frame():
            return Request(cancel=recalled)
        if self._pulse is not None and (sign := self._pulse.next_frame()):
            return sign
        if taken := self._values.take_frame():
            return Request(take=taken)
        if self._leaving:
            return None
        if self._resends:
            return self._resent_frame()
        return self._frame_of_new() if self._outbox else None

    def _acknowledgement(self, version: router_service_pb2.RosterVersion) -> Request:
        self._roster = None
        self._rosters.acknowledge(version)
        return Request(roster=version)

    def _holds_back(self) -> bool:
        """Whether few calls wait, and better wait for those that the next answers lead to."""
        return self._pacer.holds(self._outbox.count(FULL_CALLS), self._pending.calls, are_quick=False)

    def _resent_frame(self) -> Request | None:
        """Of calls that this router has not seen. Nobody is told of calls that were taken back until all are sent."""
        pending, resends = self._pending, self._resends
        here = pending.calls - resends.calls
        large = self._large_calls()
        taken = resends.take(
            self._window_calls - here,
            self._window_bytes - pending.nbytes + resends.nbytes + self._bytes_beside(),
            alone=not here,
            cuts=self._batches.cuts,
            large=large,
        )
        self._refuse_resends()
        if not taken:
            if resends:
                return None
            self._recalls.start()
            request = self._frame_of_new() or Request()  # what was left has been answered meanwhile
            request.calls.resent_all = True
            return request
        request = Request()
        frame, now = request.calls, self._loop.time()
        for resent in taken:
            if large is not None and len(resent.payloads[0]) > large.over:
                self._large = resent.ids[0], len(resent.payloads[0])
            self._batches.add_again(frame, resent, now)
        if not resends:
            frame.resent_all = True
            self._recalls.start()
        return request

    def _refuse_resends(self) -> None:
        """A lane that stops at failures has stopped. Its calls behind the failure are not sent again."""
        ids, self._resends.stopped = self._resends.stopped, []
        for part, at, _, count in self._pending.settle(ids):
            for place in range(at, at + count):
                refuse_sent(part, place)
            part.settled(at, count)

    def _frame_of_new(self) -> Request | None:
        pending, large = self._pending, self._large_calls()
        before = pending.calls
        room = self._window_calls - pending.calls
        if room <= 0 or (pending.calls and self._holds_back()):
            return None
        if room > FULL_CALLS and (waiting := self._outbox.count(2 * FRAME_CALLS)) > FULL_CALLS:
            room = min(room, most_calls(waiting, pending.calls))
        parts = self._outbox.take(
            room,
            self._window_bytes - pending.nbytes + self._bytes_beside(),
            alone=not pending.calls,
            cuts=self._batches.cuts,
            large=large,
        )
        for part in self._outbox.take_refused():
            refuse(part)
        if not parts:
            return None
        if before:
            self._pacer.left()
        request = Request()
        frame, now, roster = request.calls, self._loop.time(), self._rosters.newest
        for part in parts:
            pending.add(part, now, roster)
            if large is not None and part.nbytes > large.over:
                self._large = part.first_id, part.nbytes
            self._batches.add(frame, part)
        self._recalls.start()
        if self._closing:
            self._half_close_if_over()
        return request

    def _large_calls(self) -> LargeCalls | None:
        """None where the router counts them as any other."""
        return LargeCalls(self._window_bytes, not self._bytes_beside()) if self._batches.large_beside else None

    def _bytes_beside(self) -> int:
        """Unanswered bytes that do not count in the window."""
        call_id, nbytes = self._large
        return nbytes if nbytes and self._pending.is_unanswered(call_id) else 0

    def _look_for_recalls(self) -> None:
        if not self._resends:
            self._recalls.look_now()

    def _half_close_if_over(self) -> None:
        """In a session only when all was answered, so that acks, heartbeats and cancels can be sent until then."""
        if self._outbox and not self._leaving:
            return
        if self._pulse is not None:
            if self._pending.calls:
                return
            self._pulse.flush()
            self._pulse.stop()
        self._pump.close()
