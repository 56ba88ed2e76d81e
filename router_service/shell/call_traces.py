"""The router's spans of sampled calls: from arrival to outcome, with the time in its queue.

Purpose: the core passes trace contexts along and knows no spans. A sampled call gets a span when it arrives, which its
replica receives as the call's parent; the time of sending is recorded where frames are cut, the end where outcomes are
delivered.
Invariants: calls that are not sampled cost one look per frame, batch and delivery. Each span ends, at the latest when
its caller leaves. Of calls of a frame with one parent, `MAX_ALIKE` are sampled, and the others travel as not sampled.
Owner: the dispatcher, on its event loop.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from opentelemetry.trace import Span, SpanKind

from router_service.core.commands import CallDelivery, DeliverDone, DeliverFailure, DeliverResults, RouterCommand
from router_service.core.replicas.frames import OutgoingBatch
from router_service.core.replicas.replica import RoutedReplica
from router_service.core.runs import Caller
from slotmesh.calls.trace_context import TraceContext, is_sampled, unsampled
from slotmesh.errors import Failure
from slotmesh.telemetry import names
from slotmesh.telemetry.tracing import (
    MAX_ALIKE,
    Attributes,
    Tracing,
    WallClock,
    call_name,
    failed,
    trace_context_of,
)

_BROADCAST = (0,)
"""In place of call ids, which begin at 1."""
_MANY = 8
"""From this number of ids on, they are looked up in a set."""


class _OpenCall:
    """A sampled call that is at this router."""

    __slots__ = ("attempts", "clock", "span", "waits_from")

    def __init__(self, span: Span, clock: WallClock, arrived: float) -> None:
        self.span = span
        self.clock = clock
        self.waits_from = arrived
        """Since when it is in the queue, monotonic seconds."""
        self.attempts = 0
        """Times that it has left for a replica."""


class RouterTraces:
    """Spans of the calls of all callers."""

    def __init__(self, tracing: Tracing, router_id: str) -> None:
        self._tracing = tracing
        self._router_id = router_id
        self._open: dict[Caller, dict[int, _OpenCall]] = {}
        """By caller and call id. No entry where there are none."""
        self._by_context: dict[str, _OpenCall] = {}
        """By the trace context that replicas receive as parent."""

    def arrived(
        self,
        caller: Caller,
        endpoint: str,
        method: str,
        ids: Sequence[int],
        traces: dict[int, TraceContext] | None,
        now: float,
    ) -> dict[int, TraceContext] | None:
        """Calls were admitted, some with the trace contexts of their callers. Returns the contexts for replicas."""
        roots = self._tracing.roots.take(len(ids), now)
        if not traces and not roots:
            return traces
        clock = WallClock(now)
        contexts = dict(traces or {})
        alike: Counter[str] = Counter()
        for call_id, parent in (traces or {}).items():
            if not is_sampled(parent):
                continue
            alike[parent.traceparent] += 1
            if alike[parent.traceparent] > MAX_ALIKE:
                contexts[call_id] = unsampled(parent)
            else:
                contexts[call_id] = self._begin(caller, endpoint, method, call_id, parent, clock, now)
        for at in roots:
            call_id = ids[at]
            if (known := contexts.get(call_id)) is None or not known.traceparent:
                contexts[call_id] = self._begin(caller, endpoint, method, call_id, known, clock, now)
        return contexts

    def broadcast_arrived(
        self, caller: Caller, endpoint: str, method: str, trace: TraceContext | None, now: float
    ) -> TraceContext | None:
        """A broadcast was admitted: it has one span, the parent of those of all replicas. Returns their context."""
        given = None if trace is None else {_BROADCAST[0]: trace}
        context = (self.arrived(caller, endpoint, method, _BROADCAST, given, now) or {}).get(_BROADCAST[0])
        if context is not None:
            self._by_context.pop(context.traceparent, None)  # each replica has its own time of sending
        return context

    def broadcast_ended(self, caller: Caller, failure: Failure | None, now: float) -> None:
        """The client has all outcomes of its broadcast, or the failure of all of it."""
        call = self._open.get(caller, {}).pop(_BROADCAST[0], None)
        if call is None:
            return
        del self._open[caller]
        if failure is None:
            call.span.set_attribute(names.OUTCOME, "completed")
        else:
            failed(call.span, failure)
        self._end(call, now)

    def left(self, batches: Sequence[OutgoingBatch], replica: RoutedReplica, now: float) -> None:
        """Calls go to a replica, in the frame that was cut now."""
        if not self._by_context:
            return
        for batch in batches:
            if not batch.traces or batch.is_shadow:
                continue
            for trace in filter(None, batch.traces):  # few of many have one
                if (call := self._by_context.get(trace.traceparent)) is not None:
                    self._leave(call, replica, now)

    def carried_out(self, commands: Sequence[RouterCommand], now: float) -> None:
        """The core has commanded this."""
        if self._open:
            for command in commands:
                if isinstance(command, DeliverResults | DeliverDone | DeliverFailure):
                    self.delivered(command, now)

    def delivered(self, delivery: CallDelivery, now: float) -> None:
        """Calls have ended."""
        mine = self._open.get(delivery.caller)
        if mine is None:
            return
        ids = delivery.ids
        looked_up = ids if isinstance(ids, range) or len(mine) < _MANY else frozenset(ids)
        for call_id in [each for each in mine if each in looked_up]:
            call = mine.pop(call_id)
            if not call.attempts:
                self._note_queue(call, now)
            replica = delivery.replica
            if replica is not None:
                call.span.set_attributes({names.BACKEND: replica.backend_name, names.REPLICA_ID: replica.replica_id})
            if isinstance(delivery, DeliverFailure):
                failed(call.span, delivery.failure)
            elif isinstance(delivery, DeliverResults):
                call.span.set_attribute(names.OUTCOME, "completed")
            self._end(call, now)
        if not mine:
            del self._open[delivery.caller]

    def gone(self, caller: Caller, now: float) -> None:
        """The caller has left: its calls end elsewhere, or nowhere."""
        for call in self._open.pop(caller, {}).values():
            call.span.set_attribute(names.OUTCOME, "caller left")
            self._end(call, now)

    def _begin(
        self,
        caller: Caller,
        endpoint: str,
        method: str,
        call_id: int,
        parent: TraceContext | None,
        clock: WallClock,
        now: float,
    ) -> TraceContext:
        attributes: dict[str, str | int] = {
            names.ENDPOINT: endpoint,
            names.METHOD: method,
            names.CALL_ID: call_id,
            names.ROUTER_ID: self._router_id,
        }
        name = f"route {call_name(endpoint, method)}"
        span = self._tracing.start(
            name, parent if parent and parent.traceparent else None, clock.ns(now), attributes, SpanKind.SERVER
        )
        call = _OpenCall(span, clock, now)
        mine = self._open.setdefault(caller, {})
        if (older := mine.get(call_id)) is not None:
            self._end(older, now)
        mine[call_id] = call
        context = trace_context_of(span)
        if parent is not None and parent.http:
            context = context._replace(http=parent.http)
        self._by_context[context.traceparent] = call
        return context

    def _leave(self, call: _OpenCall, replica: RoutedReplica, now: float) -> None:
        call.attempts += 1
        self._note_queue(
            call,
            now,
            {names.REPLICA_ID: replica.replica_id, names.BACKEND: replica.backend_name, names.ATTEMPT: call.attempts},
        )

    def _note_queue(self, call: _OpenCall, now: float, attributes: Attributes = names.NO_ATTRIBUTES) -> None:
        clock = call.clock
        self._tracing.note("router queue", call.span, clock.ns(call.waits_from), clock.ns(now), attributes)
        call.waits_from = now

    def _end(self, call: _OpenCall, now: float) -> None:
        self._by_context.pop(trace_context_of(call.span).traceparent, None)
        call.span.end(call.clock.ns(now))
