"""A replica's telemetry: its counters, the spans of sampled calls, and the call's facts in log records.

Spans: one from a call's arrival to its outcome, with children for its wait, its batch and its handler. The executor
enters and leaves the handler's span, so users' own spans become its children through OpenTelemetry's context. A sampled
call is a run of its own, so other calls cost one check per run.
Invariants: `enter` and `leave` are called in one context, in the task or thread of the handler; `end` on the engine's
loop, once, when the outcome is known. A batch has one span, in the trace of its first sampled call, with a link to each
of the other sampled calls; each of these has a span of the same time with a link to that one.
Owner: the engine makes spans and counters; executors use them; the logging set-up calls `facts_of_call`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import Token
from typing import Final

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, set_span_in_context

from replica_service.core.runs import ReplicaRun
from replica_service.core.work import Part
from slotmesh.calls.trace_context import TraceContext
from slotmesh.errors import Failure, Reason
from slotmesh.handlers.context import current_place
from slotmesh.telemetry import names
from slotmesh.telemetry.tracing import MAX_ALIKE, MAX_LINKS, Tracing, WallClock, call_name, failed

REFUSED_HERE: Final = (Reason.METHOD_NOT_FOUND, Reason.BAD_ARGUMENTS)
"""Failures of calls that the handler could not accept. They count as ended, though nothing was executed."""
FAULTS: Final = (*REFUSED_HERE, Reason.HANDLER_ERROR, Reason.DEADLINE_RUNNING, Reason.BATCH_SIZE_MISMATCH)
"""Failures that depend on the version of the handler."""
SESSION_CHARS: Final = 8
"""Leading characters of a session's id that are logged."""
REQUEST_ID_FACT: Final = "request_id"


class ReplicaCounters:
    """Totals since the start: plain integers, read at each scrape."""

    __slots__ = ("batched_calls", "batches", "blocked_s", "blocks", "calls", "defects", "failures", "on_batch")

    def __init__(self) -> None:
        self.calls = 0
        """Calls executed to their end, successful or failed."""
        self.failures: Counter[Reason] = Counter()
        """Calls that ended in a failure here, by reason."""
        self.defects = 0
        """Events that cannot happen in the state of their calls; each was ignored and logged."""
        self.batches = 0
        self.batched_calls = 0
        """Calls in these batches."""
        self.blocks = 0
        """How often the handler blocked its event loop."""
        self.blocked_s = 0.0
        """Total duration of the blocks that have ended."""
        self.on_batch: Callable[[int], None] | None = None
        """Called with the number of calls of each batch."""

    @property
    def ended_calls(self) -> int:
        """Calls that reached the handler and have ended."""
        return self.calls + sum(self.failures[reason] for reason in REFUSED_HERE)

    @property
    def failed_calls(self) -> int:
        """Ended calls whose failure depends on the handler."""
        return min(self.ended_calls, sum(self.failures[reason] for reason in FAULTS))

    def batch(self, calls: int) -> None:
        """Counts a batch handed to an executor."""
        self.batches += 1
        self.batched_calls += calls
        if self.on_batch is not None:
            self.on_batch(calls)


class ReplicaTraces:
    """Gives runs of sampled calls their spans."""

    most_alike: Final = MAX_ALIKE
    """Calls of a batch with one parent that get spans."""

    def __init__(self, tracing: Tracing, now: Callable[[], float], attributes: Mapping[str, str]) -> None:
        """`attributes`: which replica this is."""
        self._tracing = tracing
        self._now = now
        self._attributes = dict(attributes)

    def begin(self, runs: Iterable[ReplicaRun]) -> None:
        """Replaces the trace contexts of arrived runs by spans."""
        for run in runs:
            if run.traced is not None:
                run.traced = TracedCall(self._tracing, self._now, run, run.traced, self._attributes)


class TracedCall:
    """The spans of one call."""

    __slots__ = (
        "_clock",
        "_handler",
        "_has_ended",
        "_left_at",
        "_now",
        "_replica",
        "_token",
        "_tracing",
        "name",
        "waits_from",
    )

    def __init__(
        self,
        tracing: Tracing,
        now: Callable[[], float],
        run: ReplicaRun,
        parent: TraceContext,
        attributes: Mapping[str, str],
    ) -> None:
        self._tracing = tracing
        self._now = now
        self._clock = clock = WallClock(now())
        self.name = call_name(run.endpoint, run.options.method)
        self.waits_from = run.arrived
        """Since when the call waits to be started, monotonic seconds."""
        facts = {**attributes, names.ENDPOINT: run.endpoint, names.METHOD: run.options.method}
        self._replica = tracing.start(f"replica {self.name}", parent, clock.ns(run.arrived), facts, SpanKind.SERVER)
        self._handler: Span | None = None
        self._left_at: float | None = None
        """When the handler ended, or its executor stopped waiting for it."""
        self._token: Token[Context] | None = None
        self._has_ended = False

    @property
    def span(self) -> Span:
        """The span from arrival to outcome."""
        return self._replica

    def enter(self) -> None:
        """Begins the handler's span in the current context."""
        self._enter(self._replica, self._begin())

    def enter_batch(self, size: int, links: Sequence[Span]) -> Span:
        """Begins the spans of a batch of `size` calls, of which this is the first sampled one. Returns the batch's."""
        began_ns = self._begin()
        batch = self._tracing.start(
            f"batch {self.name}", self._replica, began_ns, {names.BATCH_SIZE: size}, links=links
        )
        self._enter(batch, began_ns)
        return batch

    def _enter(self, parent: Span, began_ns: int) -> None:
        self._handler = handler = self._tracing.start(f"handler {self.name}", parent, began_ns, names.NO_ATTRIBUTES)
        self._token = otel_context.attach(set_span_in_context(handler))

    def leave(self) -> None:
        """Leaves the handler's span: the handler has ended, or its executor stopped waiting for it."""
        self._left_at = self._now()
        token, self._token = self._token, None
        if token is not None:
            otel_context.detach(token)

    def note_batch(self, batch: Span, size: int, began: float) -> None:
        """Records that the call was in a batch that has ended and whose span is in another trace."""
        if self._has_ended:
            return
        self._begin(began)
        self._left_at = left_at = self._now()
        times = self._clock.ns(began), self._clock.ns(left_at)
        mine = self._tracing.note(f"batch {self.name}", self._replica, *times, {names.BATCH_SIZE: size}, links=[batch])
        self._handler = self._tracing.start(f"handler {self.name}", mine, times[0], names.NO_ATTRIBUTES)

    def end(self, failure: Failure | None = None) -> None:
        """Ends the spans: the call has its outcome, or it is handed back, and `failure` states why."""
        if self._has_ended:
            return
        self._has_ended = True
        now = self._now()
        clock = self._clock
        if self._handler is None:
            self._begin(now)
        else:
            if failure is not None:
                failed(self._handler, failure)
            self._handler.end(clock.ns(now if self._left_at is None else self._left_at))
        if failure is not None:
            failed(self._replica, failure)
        self._replica.end(clock.ns(now))

    def end_batch(self, batch: Span) -> None:
        """Ends the span of the batch that this call entered."""
        self.leave()
        batch.end(self._clock.ns(self._now()))

    def _begin(self, at: float | None = None) -> int:
        """Ends the call's wait. Returns when, nanoseconds since 1970."""
        if (earlier := self._handler) is not None:  # an executor returned it unstarted, because it was too late
            earlier.set_attribute(names.OUTCOME, "not started")
            earlier.end(self._clock.ns(self._now() if self._left_at is None else self._left_at))
            self._handler = self._left_at = None
        began = self._now() if at is None else at
        began_ns = self._clock.ns(began)
        self._tracing.note("replica queue", self._replica, self._clock.ns(self.waits_from), began_ns)
        self.waits_from = began
        return began_ns


class TracedBatch:
    """The span of an invocation of a batch method in which calls are sampled."""

    __slots__ = ("_began", "_calls", "_size", "_span")

    def __init__(self, calls: Sequence[TracedCall], size: int, now: float) -> None:
        """Begins the batch's span in the current context."""
        first, *others = self._calls = calls
        self._size = size
        self._began = now
        self._span = first.enter_batch(size, [each.span for each in others[:MAX_LINKS]])

    def leave(self) -> None:
        """Ends the batch's spans. Its calls have no outcomes yet."""
        first, *others = self._calls
        first.end_batch(self._span)
        for each in others:
            each.note_batch(self._span, self._size, self._began)


def traced_batch(parts: Sequence[Part], now: float) -> TracedBatch | None:
    """Enters the batch of these calls, if any of them is sampled."""
    calls = [run.traced for run, _, _ in parts if run.traced is not None]
    return TracedBatch(calls, sum(hi - lo for _, lo, hi in parts), now) if calls else None


def entered(run: ReplicaRun) -> Callable[[], None] | None:
    """Enters the handler's span of this call if it is sampled. Returns the function that leaves it."""
    traced: TracedCall | None = run.traced
    if traced is None:
        return None
    traced.enter()
    return traced.leave


def entered_batch(parts: Sequence[Part], now: float) -> Callable[[], None] | None:
    """Like `entered`, for a batch."""
    traced = traced_batch(parts, now)
    return None if traced is None else traced.leave


def facts_of_call() -> Mapping[str, str]:
    """Returns the facts of the current call for a log record: endpoint, session, call id, request id and trace id.

    Called only when something is logged, so calls cost nothing. Facts that are unknown or ambiguous are left out. It
    never returns a payload, metadata or an ordering key, and only the beginning of a session's id.
    """
    facts: dict[str, str] = {}
    place = current_place.get()
    if place is not None:
        try:
            calls = place.contexts()
        except RuntimeError:  # several calls run here: ambiguous
            calls = ()
        if len(calls) == 1:
            facts["call_id"] = calls[0].call_id
            if request_id := calls[0].request_id:
                facts[REQUEST_ID_FACT] = request_id
            if calls[0].session_id:
                facts["session"] = calls[0].session_id[:SESSION_CHARS]
        elif calls:
            facts["calls"] = str(len(calls))
        if calls:
            facts["endpoint"] = calls[0].endpoint
    span = trace.get_current_span().get_span_context()
    if span.is_valid:
        facts["trace_id"] = f"{span.trace_id:032x}"
    return facts
