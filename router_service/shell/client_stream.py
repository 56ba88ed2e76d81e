"""One StreamCalls stream: the router's side of a conversation with a client.

Purpose: reads frames of calls, writes frames of results; the stream lives on through every failure of a call.
Invariants: the reader never waits for the writer. After half-close the stream ends once all are answered. What of a
session's calls replicas have goes on when the stream breaks.
Owner: the servicer's task of this stream.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Sequence
from itertools import groupby

from router_service import convert
from router_service.core.callers import Caller, Window
from router_service.core.calls import Batch, CallOptions, CallPayload
from router_service.core.commands import DeliverFailure, Delivery
from router_service.core.rosters import RosterVersion
from router_service.core.sessions import Session
from router_service.shell.dispatcher import Dispatcher
from router_service.shell.result_outbox import MAX_UNREAD_BYTES, ResultOutbox
from router_service.shell.uploads import Uploads
from slotmesh.chunks import MAX_INLINE_BYTES, MAX_PAYLOAD_BYTES, Announced
from slotmesh.errors import Executed, Failure, Reason
from slotmesh.runtime.pacer import Pacer
from slotmesh.runtime.pump import StreamPump
from slotmesh.status import to_wire
from slotmesh.telemetry.names import DIRECTION_IN
from slotmesh.v1 import call_pb2, router_service_pb2

Response = router_service_pb2.StreamCallsResponse

CHUNKS = "chunks"
"""The feature of clients that put large results together."""
TAKE_ITEMS = "take_items"
"""The feature of clients that say which values of handlers that yield they have taken."""
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
        *,
        features: Collection[str] = (),
        max_payload_bytes: int = MAX_PAYLOAD_BYTES,
    ) -> None:
        """`features`: the client's."""
        self.caller = Caller(window, session=session)
        self.pump = StreamPump(write, self.next_frame)
        self._endpoint = endpoint
        self._default_options = default_options
        self._dispatcher = dispatcher
        self._pacer = Pacer(self.pump.wake, dispatcher.clock.now)
        self._results = ResultOutbox(
            self.caller,
            endpoint,
            dispatcher,
            self._pacer,
            takes_chunks=CHUNKS in features,
            takes_items=TAKE_ITEMS in features,
        )
        if CHUNKS not in features:
            self.caller.max_value_bytes = MAX_INLINE_BYTES
        self._uploads = Uploads(self.caller, dispatcher)
        self._max_payload_bytes = max_payload_bytes
        self._control: deque[Response] = deque()
        self._is_ending = False
        self._all_answered = asyncio.Event()
        self.fenced = asyncio.Event()
        """A newer connection of the session has been opened: this one must end."""
        self._echo = 0
        """The client's newest stamp that was not echoed; 0 where there is none."""
        self._roster: RosterVersion | None = None
        """The newest roster, where the client was not told of it."""

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
            payloads = convert.payloads_of(batch)
            if isinstance(payloads, Failure):
                self._reject(batch, payloads)
                continue
            sizes = list(map(len, payloads))
            failure = self._mistake(batch) or self._not_reading() or self.caller.admit(ids, sum(sizes))
            if failure is not None:
                self._reject(batch, failure)
                continue
            if batch.resend and admitted:
                self._dispatcher.submit(self.caller, self._endpoint, admitted)
                admitted = []
            calls = self._with_options(batch, ids, payloads)
            if batch.chunked_sizes or max(sizes) > MAX_INLINE_BYTES:
                calls = self._apart(calls)
            if batch.resend:
                age_s = max(0.0, batch.age.ToNanoseconds() / 1e9)
                self._dispatcher.submit_again(self.caller, self._endpoint, calls, age_s, convert.first_roster_of(batch))
            else:
                admitted += calls
        if admitted:
            self._dispatcher.submit(self.caller, self._endpoint, admitted)
        if len(self._control) <= MAX_UNREAD_REJECTIONS:
            return None
        return Failure(
            reason=Reason.WINDOW_EXCEEDED,
            message=f"{len(self._control)} rejected batches wait to be read: keep to the window, and read",
            executed=Executed.UNKNOWN,
        )

    def upload(self, chunk: call_pb2.Chunk) -> None:
        """A part of a payload that was announced."""
        self._uploads.add(chunk)

    def take(self, frame: call_pb2.TakeItems) -> None:
        """The client has taken values: their handlers may go on."""
        self._results.taking.take(frame.call_ids, frame.counts)

    def cancel(self, frame: router_service_pb2.CancelCalls) -> None:
        """The client takes calls back; each that is open is answered now."""
        self._dispatcher.cancel(self.caller, convert.ranges_of(frame.calls))

    def acknowledge(self, through_frame: int) -> None:
        """The client has all result frames up to this one: their runs need not be kept any longer."""
        self._results.acknowledge(through_frame)

    def know_roster(self, wire: router_service_pb2.RosterVersion) -> None:
        """The client acknowledges a roster."""
        self._dispatcher.acknowledged(self.caller, convert.roster_from_wire(wire))

    def heard(self, stamp: int) -> None:
        """A sign of life of the client, which waits for one of ours."""
        self._echo = stamp
        self.pump.wake()

    async def finish(self) -> None:
        """The client says no more: returns once all its calls were answered and the answers were written."""
        self._uploads.end()
        self._results.taking.take_all()
        self._all_answered.clear()  # it was so when the router was told to stop; more calls may have come since
        await self.all_answered()

    async def all_answered(self) -> None:
        """The client makes no more calls, but may have more to say of those it made. Returns as `finish` does."""
        self._is_ending = True
        self.pump.wake()
        await self._all_answered.wait()

    def ended(self) -> None:
        """The stream is gone, however: nobody is left to be answered."""
        self._pacer.stop()
        self._all_answered.set()

    def say(self, response: Response) -> None:
        """Queues a frame that is not results; it goes before them."""
        self._control.append(response)
        self.pump.wake()

    # -- out -------------------------------------------------------------------------------------------------------

    def name_roster(self, version: RosterVersion) -> None:
        """The client is told of the roster, or of a newer one that comes before it was."""
        self._roster = version
        self.pump.wake()

    def deliver(self, delivery: Delivery) -> None:
        """Outcomes or values of calls, for the next frame."""
        if self._uploads:
            self._uploads.ended(delivery.ids)
        self._results.add(delivery)
        self.pump.wake()

    def next_frame(self) -> Response | None:
        """Everything that is ready, up to the bounds of a frame."""
        if self._control:
            return self._control.popleft()
        if self._roster is not None:
            version, self._roster = self._roster, None
            return Response(roster=convert.roster_to_wire(version))
        if self._echo:
            stamp, self._echo = self._echo, 0
            return Response(heartbeat=call_pb2.Heartbeat(echoed_stamp=stamp))
        frame = self._results.next_frame()
        if frame is None and self._is_ending and not self.caller.runs and not self._results:
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

    def _mistake(self, batch: router_service_pb2.CallBatch) -> Failure | None:
        if batch.ordering_keys and len(batch.ordering_keys) != len(batch.payloads):
            return Failure(
                reason=Reason.BAD_REQUEST,
                message=(
                    f"ordering_keys: {len(batch.ordering_keys)} keys for {len(batch.payloads)} payloads; "
                    "they must be as many, or none"
                ),
                metadata={"field": "ordering_keys"},
            )
        session = self.caller.session
        if not batch.resend or (session is not None and session.resumption is not None):
            return None
        return Failure(
            reason=Reason.BAD_REQUEST,
            message="resend: calls are sent again only where a session goes on (epoch 2 and above)",
            metadata={"field": "resend"},
        )

    def _with_options(
        self, batch: router_service_pb2.CallBatch, ids: Sequence[int], payloads: list[CallPayload]
    ) -> list[Batch]:
        """The calls of a batch, neighbours with the same options together. Those with unsound options fail."""
        wire = batch.options if batch.HasField("options") else self._default_options
        if not batch.ordering_keys:
            options = convert.options_from_wire(wire)
            return self._sound(options, ids, payloads)
        calls: list[Batch] = []
        options_of = convert.options_by_key(wire)
        at = 0
        for key, neighbours in groupby(batch.ordering_keys):
            begin = at
            at += sum(1 for _ in neighbours)
            calls += self._sound(options_of(key), ids[begin:at], payloads[begin:at])
        return calls

    def _sound(self, options: CallOptions | Failure, ids: Sequence[int], payloads: list[CallPayload]) -> list[Batch]:
        if not isinstance(options, Failure) and options.stop_generation:
            options = self._stop_mistake(options) or options
        if isinstance(options, Failure):
            self.deliver(DeliverFailure(self.caller, ids, options, sum(map(len, payloads))))
            return []
        if options.slo_at is not None:
            options = convert.with_relative_slo(options, self._dispatcher.clock.time_of_day())
        return [(options, ids, payloads)]

    def _not_reading(self) -> Failure | None:
        unread = self._results.unread_bytes
        if unread <= MAX_UNREAD_BYTES or self.caller.session is not None:
            return None
        return Failure(
            reason=Reason.WINDOW_EXCEEDED,
            message=f"{unread} bytes of results wait to be read: read them before sending more",
            retry_delay_s=0.1,
        )

    def _stop_mistake(self, options: CallOptions) -> Failure | None:
        needed = "an ordering key" if not options.ordering_key else "a session" if self.caller.session is None else ""
        return (
            Failure(
                reason=Reason.BAD_REQUEST,
                message=f"options.stop_generation: needs {needed}",
                metadata={"field": "options.stop_generation"},
            )
            if needed
            else None
        )

    def _apart(self, calls: list[Batch]) -> list[Batch]:
        """The calls, in order; those whose payload is still to come each alone. Those that are too large fail."""
        apart: list[Batch] = []
        for options, ids, payloads in calls:
            start = 0
            for at, payload in enumerate(payloads):
                is_announced = isinstance(payload, Announced)
                limit = self._max_payload_bytes if is_announced else MAX_INLINE_BYTES
                if not is_announced and len(payload) <= limit:
                    continue
                if at > start:
                    apart.append((options, ids[start:at], payloads[start:at]))
                start = at + 1
                if (size := len(payload)) > limit:
                    if options.stop_generation:
                        self.caller.stop(options.ordering_key, options.stop_generation, ids[at])
                    self.deliver(DeliverFailure(self.caller, ids[at:start], convert.too_large(size, limit), size))
                    continue
                self._uploads.announce(ids[at], size)
                apart.append((options, ids[at:start], payloads[at:start]))
            if start < len(ids):
                apart.append((options, ids[start:], payloads[start:]))
        return apart
