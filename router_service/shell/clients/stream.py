"""One StreamCalls stream: the router's side of a conversation with a client.

Purpose: reads frames of calls, writes frames of results; the stream survives every failure of a call.
Invariants: the reader never waits for the writer. After half-close the stream ends once all calls are answered. Calls
of a session that are at replicas continue when the stream breaks.
Owner: the servicer's task of this stream.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Iterator, Sequence
from typing import Any

from router_service import convert
from router_service.core.callers import Window
from router_service.core.calls import Batch, KeyedBatch
from router_service.core.commands import DeliverFailure, DeliverValues, Delivery
from router_service.core.events import AllCallsResent, CallsCancelled, CallsResent, CallsSubmitted, RosterAcknowledged
from router_service.core.limits.quotas import CallerShare
from router_service.core.limits.unread_results import Unread
from router_service.core.rosters import RosterVersion, SessionConnection
from router_service.core.runs import Caller
from router_service.shell.clients.call_reader import MAX_STEP, CallReader, uploads_of
from router_service.shell.clients.outbox import ResultOutbox
from router_service.shell.dispatcher import Dispatcher
from slotmesh.convert.batches import count_of, ranges_from_wire
from slotmesh.errors import Executed, Failure, Reason
from slotmesh.security.rpc_roles import known_endpoints
from slotmesh.status import to_wire
from slotmesh.streams.features import CHUNKS
from slotmesh.streams.limits import MAX_CALL_ID, MAX_INLINE_BYTES, MAX_PAYLOAD_BYTES
from slotmesh.telemetry.names import DIRECTION_IN
from slotmesh.transport.duplex import Interruption
from slotmesh.transport.pump import Pacer, StreamPump
from slotmesh.v1 import call_pb2, router_service_pb2

Response = router_service_pb2.StreamCallsResponse

MAX_UNREAD_REJECTIONS = 16_384
"""Rejected batches that may wait likewise; they cost the client nothing to cause, so more of them end the stream."""
MAX_UNREAD_REJECTED_IDS = 1024 * 1024
"""Ids in them, likewise."""


class ClientStream:
    """Admits calls into the scheduler, gathers their outcomes into frames."""

    def __init__(
        self,
        endpoint: str,
        default_options: call_pb2.CallOptions,
        window: Window,
        dispatcher: Dispatcher,
        unread: Unread,
        write: Callable[[Response], Coroutine[Any, Any, object]],
        session: SessionConnection | None = None,
        *,
        features: Collection[str] = (),
        max_payload_bytes: int = MAX_PAYLOAD_BYTES,
        share: CallerShare | None = None,
    ) -> None:
        """`unread`: what all streams hold of their clients' results. `features`: the client's; `share`: its own."""
        largest = MAX_PAYLOAD_BYTES if CHUNKS in features else MAX_INLINE_BYTES
        self.caller = Caller(window, session=session, max_value_bytes=largest, share=share)
        self.caller.knows = known_endpoints()
        self.pump = StreamPump(write, self.next_frame, dispatcher.woken)
        self._endpoint = endpoint
        self._dispatcher = dispatcher
        self._pacer = Pacer(self.pump.wake, dispatcher.clock.now)
        self._results = ResultOutbox(
            self.caller,
            endpoint,
            dispatcher,
            self._pacer,
            unread,
            features,
        )
        self._uploads = uploads_of(self.caller, dispatcher)
        self._calls = CallReader(
            endpoint,
            self.caller,
            default_options,
            self._results,
            self._uploads,
            dispatcher,
            reject=self._reject,
            deliver=self._deliver_at_edge,
            max_payload_bytes=max_payload_bytes,
        )
        self._control: deque[Response] = deque()
        self._rejected_ids = 0
        """Ids in rejections that wait in there."""
        self._is_accepting = False
        """A frame of calls is being dealt with."""
        self._is_ending = False
        self._all_answered = asyncio.Event()
        self.fenced: Interruption[Failure] = Interruption()
        """Of the conversation, once a newer connection of the session has been opened."""
        self._echo = 0
        """The client's newest stamp that was not echoed; 0 where there is none."""
        self._roster: RosterVersion | None = None
        """The newest roster, where the client has not been sent it."""
        self._mark = "" if session is None else session.owner_mark

    # -- in --------------------------------------------------------------------------------------------------------

    def accept(self, frame: router_service_pb2.CallFrame, payloads: Sequence[bytes] = ()) -> Iterator[Failure | None]:
        """Admits each batch of a frame of calls, or rejects it as a whole. `payloads`: of its only batch, if not in it.

        In steps: the caller yields to the event loop between two of them. A failure is the last step: the stream must
        end.
        """
        self._dispatcher.counts.client_frames[DIRECTION_IN,] += 1
        self._is_accepting = True
        try:
            yield from self._accept(frame, payloads)
        finally:
            self._is_accepting = False
            if self._is_ending:
                self.pump.wake()

    def upload(self, chunk: call_pb2.Chunk, payloads: Sequence[bytes] = ()) -> None:
        """A part of a payload that was announced. `payloads`: the part, if it is not in there."""
        self._uploads.accept(chunk.call_id, chunk.offset, chunk.total, payloads[-1] if payloads else chunk.data)

    def take(self, frame: call_pb2.TakeItems) -> None:
        """The client has taken values: their handlers may go on."""
        self._results.taking.take(frame.call_ids, frame.counts)

    def cancel(self, frame: router_service_pb2.CancelCalls) -> Iterator[None]:
        """The client takes calls back; each that is open is answered now. In steps, as `accept`."""
        last_ids = self.caller.ids_apart(MAX_STEP)
        for at in range(0, len(frame.calls), MAX_STEP):
            ranges = ranges_from_wire(frame.calls[at : at + MAX_STEP])
            first = 0
            for last in (*last_ids, MAX_CALL_ID):
                part = [(max(first, lo), min(last, hi)) for lo, hi in ranges if lo <= last and hi >= first]
                first = last + 1
                if part:
                    self._dispatcher.post(CallsCancelled(self.caller, part))
                    yield

    def acknowledge(self, through_frame: int) -> None:
        """The client has all result frames up to this one: their runs need not be kept any longer."""
        self._results.unacknowledged.acknowledge(through_frame)

    def know_roster(self, wire: router_service_pb2.RosterVersion) -> None:
        """The client acknowledges a roster."""
        self._dispatcher.post(RosterAcknowledged(self.caller, convert.roster_from_wire(wire, self._mark)))

    @property
    def is_busy(self) -> bool:
        """Whether calls of the client are open, or outcomes wait for it."""
        return self.caller.has_open_calls or bool(self._results)

    def heard(self, stamp: int) -> None:
        """A sign of life of the client, which waits for one of ours."""
        self._echo = stamp
        self.pump.wake()

    async def finish(self) -> None:
        """The client has half-closed: returns once all its calls were answered and the answers were written."""
        self._uploads.end()
        self._results.taking.take_all()
        self._all_answered.clear()  # it was so when the router was asked to stop; more calls may have come since
        await self.all_answered()

    async def all_answered(self) -> None:
        """The client makes no more calls, but may still acknowledge and cancel. Returns as `finish` does."""
        self._is_ending = True
        self.pump.wake()
        await self._all_answered.wait()

    def ended(self) -> None:
        """The stream has ended, in order or not: nothing more can be answered."""
        self._pacer.stop()
        self._calls.close()
        self._results.close()
        self._dispatcher.scheduler.left(self.caller)
        self._all_answered.set()

    def say(self, response: Response) -> None:
        """Queues a frame that is not results; it goes before them."""
        self._control.append(response)
        self.pump.wake()

    # -- out -------------------------------------------------------------------------------------------------------

    def name_roster(self, version: RosterVersion) -> None:
        """Sends the roster to the client, or a newer one that comes before it was written."""
        self._roster = version
        self.pump.wake()

    def deliver(self, delivery: Delivery) -> None:
        """Outcomes or values of calls, for the next frame."""
        if self._uploads.under_way:
            self._uploads.drop(delivery.ids)
        self._results.add(delivery)
        self.pump.wake()

    def _deliver_at_edge(self, delivery: Delivery) -> None:
        """Outcomes of calls that never reach the dispatcher."""
        if isinstance(delivery, DeliverFailure) and (failures := self._dispatcher.failures) is not None:
            failures.delivered(delivery, self._endpoint)
        if (spans := self._dispatcher.traces) is not None and not isinstance(delivery, DeliverValues):
            spans.delivered(delivery, self._dispatcher.clock.now())
        self.deliver(delivery)

    def next_frame(self) -> Response | None:
        """Everything that is ready, up to the bounds of a frame. The frame before this was written."""
        self._results.written()
        frame = self._next_frame()
        if frame is not None:
            self._results.leaves()
        return frame

    def _next_frame(self) -> Response | None:
        if self._control:
            response = self._control.popleft()
            self._rejected_ids -= len(response.rejected.call_ids)
            return response
        if self._roster is not None:
            version, self._roster = self._roster, None
            return Response(roster=convert.roster_to_wire(version, self._mark))
        if self._echo:
            stamp, self._echo = self._echo, 0
            return Response(heartbeat=call_pb2.Heartbeat(echoed_stamp=stamp))
        frame = self._results.next_frame()
        if frame is not None or not self._is_ending or self._is_accepting:
            return frame
        if not self.caller.has_open_calls and not self._results:
            self._all_answered.set()
        return None

    def _accept(self, frame: router_service_pb2.CallFrame, cut: Sequence[bytes]) -> Iterator[Failure | None]:
        fresh: list[Batch | KeyedBatch] = []
        work = 0
        for batch, calls, groups in self._calls.admitted(frame, cut):
            work += max(groups, len(calls))
            if batch.resend and calls:
                self._submit(fresh)
                fresh = []
                age_s = max(0.0, batch.age.ToNanoseconds() / 1e9)
                first_roster = convert.first_roster_of(batch, self._mark)
                resent = [each for each in calls if not isinstance(each, KeyedBatch)]  # every one of them
                self._dispatcher.post(
                    CallsResent(self.caller, self._endpoint, resent, age_s, first_roster, self._calls.traces)
                )
            else:
                fresh += calls
            if work >= MAX_STEP:
                self._submit(fresh)
                fresh, work = [], 0
                failure = self._too_many_rejections()
                yield failure
                if failure is not None or self.fenced.why is not None:
                    return
        self._submit(fresh)
        if frame.resent_all:
            self._dispatcher.post(AllCallsResent(self.caller))
        if self._control and (failure := self._too_many_rejections()):
            yield failure

    def _submit(self, calls: list[Batch | KeyedBatch]) -> None:
        if calls:
            self._dispatcher.post(CallsSubmitted(self.caller, self._endpoint, calls, self._calls.traces))

    def _reject(self, batch: router_service_pb2.CallBatch, failure: Failure) -> None:
        # An honest batch has no more ids than the window has calls; of others the ids are not worth keeping.
        ids = batch.call_ids if len(batch.call_ids) <= self.caller.window.calls else ()
        self._rejected_ids += len(ids)
        if (failures := self._dispatcher.failures) is not None:
            session = self.caller.session
            failure = failures.noted(
                failure,
                count_of(batch),
                self._endpoint,
                session="" if session is None else session.session_id,
                call_id=batch.first_call_id,
            )
        self.say(
            Response(
                rejected=router_service_pb2.RejectedBatch(
                    first_call_id=batch.first_call_id,
                    count=count_of(batch),
                    failure=to_wire(failure),
                    call_ids=ids,
                )
            )
        )

    def _too_many_rejections(self) -> Failure | None:
        """Why the stream must end, if so much was rejected and not read."""
        if len(self._control) <= MAX_UNREAD_REJECTIONS and self._rejected_ids <= MAX_UNREAD_REJECTED_IDS:
            return None
        return Failure(
            reason=Reason.WINDOW_EXCEEDED,
            message=f"{len(self._control)} rejected batches wait to be read: keep to the window, and read",
            executed=Executed.UNKNOWN,
        )
