"""One StreamCalls stream: the router's side of a conversation with a client.

Purpose: reads frames of calls, writes frames of results; the stream lives on through every failure of a call.
Invariants: the reader never waits for the writer. After half-close the stream ends once all are answered. What of a
session's calls replicas have goes on when the stream breaks.
Owner: the servicer's task of this stream.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from router_service import convert
from router_service.core.callers import Caller, Window
from router_service.core.calls import Batch, CallOptions
from router_service.core.commands import DeliverFailure, Outcome
from router_service.core.sessions import Session
from router_service.shell.dispatcher import Dispatcher
from router_service.shell.result_outbox import MAX_UNREAD_BYTES, ResultOutbox
from slotmesh.errors import Executed, Failure, Reason
from slotmesh.runtime.pump import StreamPump
from slotmesh.status import to_wire
from slotmesh.telemetry.names import DIRECTION_IN
from slotmesh.v1 import call_pb2, router_service_pb2

Response = router_service_pb2.StreamCallsResponse

MAX_UNREAD_REJECTIONS = 16_384
"""Rejected batches that may wait likewise; they cost the client nothing to cause, so more of them end the stream."""


class ClientStream:
    """Admits calls into the scheduler, gathers their outcomes into frames."""

    def __init__(
        self,
        endpoint: str,
        default_options: call_pb2.CallOptions,
        window: Window,
        dispatcher: Dispatcher,
        write: Callable[[Response], Awaitable[object]],
        session: Session | None = None,
    ) -> None:
        self.caller = Caller(window, session=session)
        self.pump = StreamPump(write, self.next_frame)
        self._endpoint = endpoint
        self._default_options = default_options
        self._dispatcher = dispatcher
        self._results = ResultOutbox(self.caller, endpoint, dispatcher)
        self._control: deque[Response] = deque()
        self._half_closed = False
        self._all_answered = asyncio.Event()
        self.fenced = asyncio.Event()
        """A newer connection of the session has been opened: this one must end."""
        self._echo = 0
        """The client's newest stamp that was not echoed; 0 where there is none."""

    # -- in --------------------------------------------------------------------------------------------------------

    def accept(self, frame: router_service_pb2.CallFrame) -> Failure | None:
        """Admits each batch of a frame of calls, or rejects it as a whole. Says why the stream must end, if it must."""
        self._dispatcher.scheduler.counters.frames[DIRECTION_IN,] += 1
        admitted: list[Batch] = []
        for batch in frame.batches:
            ids = convert.ids_of(batch)
            if isinstance(ids, Failure):
                self._reject(batch, ids)
                continue
            payloads = list(batch.payloads)
            sizes = list(map(len, payloads))
            failure = self._resend_mistake(batch) or self._not_reading() or self.caller.admit(ids, sum(sizes))
            if failure is not None:
                self._reject(batch, failure)
                continue
            if batch.resend and admitted:
                self._dispatcher.submit(self.caller, self._endpoint, admitted)
                admitted = []
            wire = batch.options if batch.HasField("options") else self._default_options
            options = convert.options_from_wire(wire)
            if not isinstance(options, Failure) and options.slo_at is not None:
                options = convert.with_relative_slo(options, self._dispatcher.clock.time_of_day())
            if isinstance(options, Failure):
                self.deliver(DeliverFailure(self.caller, ids, options, sum(sizes)))
            elif batch.resend:
                age_s = max(0.0, batch.age.ToNanoseconds() / 1e9)
                fitting = self._without_oversize(options, ids, payloads)
                self._dispatcher.submit_again(self.caller, self._endpoint, fitting, age_s)
            elif max(sizes) > convert.MAX_PAYLOAD_BYTES:
                admitted += self._without_oversize(options, ids, payloads)
            else:
                admitted.append((options, ids, payloads))
        if admitted:
            self._dispatcher.submit(self.caller, self._endpoint, admitted)
        if len(self._control) <= MAX_UNREAD_REJECTIONS:
            return None
        return Failure(
            reason=Reason.WINDOW_EXCEEDED,
            message=f"{len(self._control)} rejected batches wait to be read: keep to the window, and read",
            executed=Executed.UNKNOWN,
        )

    def cancel(self, frame: router_service_pb2.CancelCalls) -> None:
        """The client takes calls back; each that is open is answered now."""
        self._dispatcher.cancel(self.caller, convert.ranges_of(frame.calls))

    def acknowledge(self, through_frame: int) -> None:
        """The client has all result frames up to this one: their runs need not be kept any longer."""
        self._results.acknowledge(through_frame)

    def heard(self, stamp: int) -> None:
        """A sign of life of the client, which waits for one of ours."""
        self._echo = stamp
        self.pump.wake()

    async def finish(self) -> None:
        """The client makes no more calls: returns once all were answered and the answers were written."""
        self._half_closed = True
        self.pump.wake()
        await self._all_answered.wait()

    def ended(self) -> None:
        """The stream is gone, however: nobody is left to be answered."""
        self._all_answered.set()

    def say(self, response: Response) -> None:
        """Queues a frame that is not results; it goes before them."""
        self._control.append(response)
        self.pump.wake()

    # -- out -------------------------------------------------------------------------------------------------------

    def deliver(self, outcome: Outcome) -> None:
        """Outcomes of calls, for the next frame."""
        self._results.add(outcome)
        self.pump.wake()

    def next_frame(self) -> Response | None:
        """Everything that is ready, up to the bounds of a frame."""
        if self._control:
            return self._control.popleft()
        if self._echo:
            stamp, self._echo = self._echo, 0
            return Response(heartbeat=call_pb2.Heartbeat(echoed_stamp=stamp))
        frame = self._results.next_frame()
        if frame is None and self._half_closed and not self.caller.runs and not self._results:
            self._all_answered.set()
        return frame

    def _reject(self, batch: router_service_pb2.CallBatch, failure: Failure) -> None:
        self.say(
            Response(
                rejected=router_service_pb2.RejectedBatch(
                    first_call_id=batch.first_call_id,
                    count=len(batch.payloads),
                    failure=to_wire(failure),
                    call_ids=batch.call_ids,
                )
            )
        )

    def _resend_mistake(self, batch: router_service_pb2.CallBatch) -> Failure | None:
        session = self.caller.session
        if not batch.resend or (session is not None and session.resumption is not None):
            return None
        return Failure(
            reason=Reason.BAD_REQUEST,
            message="resend: calls are sent again only where a session goes on (epoch 2 and above)",
            metadata={"field": "resend"},
        )

    def _not_reading(self) -> Failure | None:
        unread = self._results.unread_bytes
        if unread <= MAX_UNREAD_BYTES or self.caller.session is not None:
            return None
        return Failure(
            reason=Reason.WINDOW_EXCEEDED,
            message=f"{unread} bytes of results wait to be read: read them before sending more",
            retry_delay_s=0.1,
        )

    def _without_oversize(self, options: CallOptions, ids: Sequence[int], payloads: list[bytes]) -> list[Batch]:
        """Fails the calls whose payload is too large; the others go on, in order."""
        batches: list[Batch] = []
        start = 0
        for at, payload in enumerate([*payloads, None]):
            if payload is not None and len(payload) <= convert.MAX_PAYLOAD_BYTES:
                continue
            if at > start:
                batches.append((options, ids[start:at], payloads[start:at]))
            if payload is not None:
                size = len(payload)
                self.deliver(DeliverFailure(self.caller, ids[at : at + 1], convert.too_large(size), size))
            start = at + 1
        return batches
