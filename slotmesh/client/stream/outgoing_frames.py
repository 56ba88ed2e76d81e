"""The frames that leave over one stream, and their order.

Purpose: stays within the window, sends again what an earlier stream of the session has left unanswered, and closes the
writing half when nothing more is to be sent. One write is in progress; what accumulates meanwhile is the next frame,
and a few calls wait for a moment if more are about to join (`slotmesh.streams.pacing`).
Invariants: unanswered calls and bytes stay within the router's newest window (one call that is larger than the window
is allowed beside the others); calls that are sent again go first; a cancelled call counts until its outcome arrives,
which is dropped.
Owner: the `RouterLink` of one connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import grpc

from slotmesh.client.calls.outbox import FRAME_CALLS, CallOutbox, LargeCalls
from slotmesh.client.calls.queues import TenantShares
from slotmesh.client.calls.sent_parts import refuse, refuse_sent
from slotmesh.client.stream.abandoned_calls import RecallWatch
from slotmesh.client.stream.batch_writer import BatchWriter
from slotmesh.client.stream.heartbeats import Pulse
from slotmesh.client.stream.incoming_results import ArrivingValues
from slotmesh.client.stream.pending_calls import PendingCalls
from slotmesh.client.stream.resends import Resends, Rosters
from slotmesh.grpc_internals.call_writer import writer_of
from slotmesh.streams.limits import START_WINDOW_BYTES, START_WINDOW_CALLS
from slotmesh.streams.pacing import FULL_CALLS, most_calls
from slotmesh.transport.pump import Pacer, StreamPump
from slotmesh.v1 import router_service_pb2

Request = router_service_pb2.StreamCallsRequest
Response = router_service_pb2.StreamCallsResponse
StreamCall = grpc.aio.StreamStreamCall[Request, Response]


class OutgoingFrames:
    """The writing half of a stream, after its opening."""

    def __init__(
        self,
        call: StreamCall,
        outbox: CallOutbox,
        pending: PendingCalls,
        batches: BatchWriter,
        rosters: Rosters,
        *,
        on_silence: Callable[[], None],
    ) -> None:
        """`on_silence` is called when the router falls silent."""
        self._call = call
        self._outbox = outbox
        self._pending = pending
        self._batches = batches
        self._rosters = rosters
        self._roster: router_service_pb2.RosterVersion | None = None
        """The roster version to acknowledge."""
        self._window_calls = START_WINDOW_CALLS
        self._window_bytes = START_WINDOW_BYTES
        self._large = 0, 0
        """Id and bytes of the newest call that left here with more bytes than the window, beside the others."""
        self._loop = asyncio.get_running_loop()
        self._pump: StreamPump[Request] = StreamPump(writer_of(call), self._next_frame)
        self._pacer = Pacer(self._pump.wake)
        self._recalls = RecallWatch(pending, self._pump.wake)
        self._resends = Resends(pending.parts())
        self._leaving = False
        self._closing = False
        self.values = ArrivingValues(pending, self._pump.wake)
        """Acknowledges values that were read."""
        self.pulse = Pulse(self._pump.wake, on_silence, awaits_answers=lambda: self._pending.calls > 0)
        """Sends heartbeats and acknowledgements."""
        self.wake: Callable[[], None] = self._pump.wake
        """Calls wait in the outbox."""
        if self._resends:
            self._pump.wake()

    async def run(self) -> None:
        """Writes until the half-close. Raises the error that broke the stream."""
        await self._pump.start()
        await self._call.done_writing()

    def stop(self) -> None:
        """Sends nothing more."""
        self._recalls.stop()
        self._pacer.stop()
        self.pulse.stop()

    def finish(self) -> None:
        """Half-closes once nothing more is to be sent."""
        self._closing = True
        self._pacer.hurry()
        self._look_for_recalls()
        self._half_close_if_over()

    def leave(self) -> bool:
        """The router leaves: no new calls are sent. Returns False if that was known."""
        if self._leaving:
            return False
        self._leaving = True
        self._look_for_recalls()
        return True

    def linger(self) -> None:
        """The session moves to another stream, except for calls that cannot move: all further frames are for those."""
        self._batches.chunks.streaming_only = True
        self._roster = None  # this router may not use replicas that the next router does not know

    def take_back_all(self) -> None:
        """Cancels all pending calls: the client is closed."""
        if not self._resends:
            self._recalls.take_back_all()

    def set_window(self, window: router_service_pb2.Window) -> None:
        """Sets how much may be unanswered from now on."""
        self._window_calls = max(window.calls, 1)
        self._window_bytes = max(window.bytes, 1)

    def acknowledge(self, version: router_service_pb2.RosterVersion) -> None:
        """The router has sent a version of the roster."""
        self._roster = version
        self._pump.wake()

    def go_on(self) -> None:
        """There may be room now, or nothing left to send."""
        if self._outbox.rota or self._resends.parts:
            self._pump.wake()
        if self._closing or self._leaving:
            self._half_close_if_over()

    # -- frames ----------------------------------------------------------------------------------------------------

    def _next_frame(self) -> Request | None:
        chunks = self._batches.chunks
        return chunks.turns.next(chunks.take, self._next_other_frame) if chunks.left else self._next_other_frame()

    def _next_other_frame(self) -> Request | None:
        if self._roster is not None:
            return self._acknowledgement(self._roster)
        if self._recalls.found and (recalled := self._recalls.take_frame()):
            return Request(cancel=recalled)
        if self.pulse.is_due and (sign := self.pulse.next_frame()):
            return sign
        if self.values.unacknowledged and (taken := self.values.take_frame()):
            return Request(take=taken)
        if self._leaving:
            return None
        if self._resends.parts:
            return self._resent_frame()
        return self._frame_of_new() if self._outbox.rota else None

    def _acknowledgement(self, version: router_service_pb2.RosterVersion) -> Request:
        self._roster = None
        self._rosters.acknowledge(version)
        return Request(roster=version)

    def _holds_back(self) -> bool:
        """Whether few calls wait, and should wait for the calls that follow the next answers."""
        return self._pacer.holds(self._outbox.count(FULL_CALLS), self._pending.calls, are_quick=False)

    def _resent_frame(self) -> Request | None:
        """Calls that this router has not received. No cancels are sent until all of them have left."""
        pending, resends = self._pending, self._resends
        here = pending.calls - resends.calls
        beside = self._bytes_beside()
        large = LargeCalls(self._window_bytes, not beside)
        taken = resends.take(
            self._window_calls - here,
            self._window_bytes - pending.nbytes + resends.nbytes + beside,
            large,
        )
        self._refuse_resends()
        if not taken:
            if resends:
                return None
            self._recalls.start()
            request = Request()  # the rest was answered meanwhile
            request.calls.resent_all = True
            return self._frame_of_new(request) or request
        request = Request()
        frame, now = request.calls, self._loop.time()
        self._batches.begin(len(taken))
        for resent in taken:
            if len(resent.payloads[0]) > large.over:
                self._large = resent.ids[0], len(resent.payloads[0])
            self._batches.add_again(frame, resent, now)
        if not resends:
            frame.resent_all = True
            self._recalls.start()
        return self._batches.finished(request)

    def _refuse_resends(self) -> None:
        """Refuses calls behind a failure in a lane that stops at failures: they are not sent again."""
        ids, self._resends.stopped = self._resends.stopped, []
        for part, at, _, count in self._pending.settle(ids):
            for place in range(at, at + count):
                refuse_sent(part, place)
            part.settled(at, count)

    def _frame_of_new(self, request: Request | None = None) -> Request | None:
        """Calls that leave for the first time, if there is room, added to a frame."""
        pending = self._pending
        before = pending.calls
        room = self._window_calls - before
        if room <= 0 or (before and self._holds_back()):
            return None
        beside = self._bytes_beside() if self._large[1] else 0
        large = LargeCalls(self._window_bytes, not beside)
        nbytes = self._window_bytes - pending.nbytes + beside
        shares = TenantShares(pending.by_tenant(), room, nbytes) if self._outbox.rota.has_tenants else None
        if room > FULL_CALLS and (waiting := self._outbox.count(2 * FRAME_CALLS)) > FULL_CALLS:
            room = min(room, most_calls(waiting, pending.calls))
        parts = self._outbox.take(room, nbytes, large, shares=shares)
        if self._outbox.refused:
            for part in self._outbox.take_refused():
                refuse(part)
        if not parts:
            return None
        if before:
            self._pacer.left()
        elif self.pulse.is_resting:
            self.pulse.rise()
        request = request or Request()
        frame, now, roster = request.calls, self._loop.time(), self._rosters.newest
        self._batches.begin(len(parts))
        if (chunks := self._batches.chunks).left:
            chunks.turns.passed(sum(part.nbytes for part in parts))
        for part in parts:
            pending.add(part, now, roster)
            if part.nbytes > large.over:
                self._large = part.first, part.nbytes
            self._batches.add(frame, part)
        self._recalls.start()
        if self._closing:
            self._half_close_if_over()
        return self._batches.finished(request)

    def _bytes_beside(self) -> int:
        """Unanswered bytes that do not count in the window."""
        call_id, nbytes = self._large
        return nbytes if nbytes and self._pending.is_unanswered(call_id) else 0

    def _look_for_recalls(self) -> None:
        if not self._resends:
            self._recalls.look_now()

    def _half_close_if_over(self) -> None:
        """Half-closes only when all was answered, so that cancels, acks and heartbeats can be sent until then."""
        if (self._outbox and not self._leaving) or self._pending.calls:
            return
        self.pulse.flush()
        self.pulse.stop()
        self._pump.close()
