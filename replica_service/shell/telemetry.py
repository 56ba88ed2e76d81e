"""The replica's spans of a call that is sampled: from arrival to outcome; inside its wait, its batch and its handler.

Purpose: whoever executes the call enters and leaves the handler's span, where users' own spans become its children, by
OpenTelemetry's context. A call that is sampled is a run of its own, so that others cost one look a run.
Invariants: `enter` and `leave` are called in one context, in the task or thread of the handler; `end` on the engine's
loop, once, when the outcome is known. A batch has one span, in the trace of its first sampled call, with a link to each
of the others; these have a span of the same time, with a link to that one.
Owner: the engine makes them; executors use them.
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

from replica_service.core.calls.commands import Part
from replica_service.core.calls.runs import ReplicaRun
from slotmesh.calls.trace_context import TraceContext
from slotmesh.errors import Failure, Reason
from slotmesh.handlers.context import current_place
from slotmesh.telemetry import names
from slotmesh.telemetry.mesh_span import MAX_LINKS
from slotmesh.telemetry.tracing import MAX_ALIKE, Tracing, WallClock, call_name, failed

# The counters of the replica: plain integers, read at each scrape.

REFUSED_HERE: Final = (Reason.METHOD_NOT_FOUND, Reason.BAD_ARGUMENTS)
"""Failures of calls that the handler could not take: they count as ended, though nothing was executed."""
FAULTS: Final = (*REFUSED_HERE, Reason.HANDLER_ERROR, Reason.DEADLINE_RUNNING, Reason.BATCH_SIZE_MISMATCH)
"""Failures that another version of the handler may have, or not have."""


class ReplicaCounters:
    """Totals since the start."""

    __slots__ = ("batched_calls", "batches", "blocked_s", "blocks", "calls", "failures", "on_batch")

    def __init__(self) -> None:
        self.calls = 0
        """Calls executed to their end, well or not."""
        self.failures: Counter[Reason] = Counter()
        """Calls that ended in a failure here."""
        self.batches = 0
        self.batched_calls = 0
        """Calls in these."""
        self.blocks = 0
        """Times that the handler has blocked its event loop."""
        self.blocked_s = 0.0
        """For how long, those that have ended."""
        self.on_batch: Callable[[int], None] | None = None
        """Called with each batch's number of calls."""

    @property
    def ended_calls(self) -> int:
        """Calls that came to the handler, and have ended."""
        return self.calls + sum(self.failures[reason] for reason in REFUSED_HERE)

    @property
    def failed_calls(self) -> int:
        """Those of them that have failed for what the handler is."""
        return min(self.ended_calls, sum(self.failures[reason] for reason in FAULTS))

    def batch(self, calls: int) -> None:
        """A batch of so many calls was handed to an executor."""
        self.batches += 1
        self.batched_calls += calls
        if self.on_batch is not None:
            self.on_batch(calls)


NOTHING_COUNTED: Final = ReplicaCounters()
"""Of a replica that has no handler yet; to be read."""


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
        """Runs have arrived."""
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
        """Since when it is not started, monotonic seconds."""
        said = {**attributes, names.ENDPOINT: run.endpoint, names.METHOD: run.options.method}
        self._replica = tracing.start(f"replica {self.name}", parent, clock.ns(run.arrived), said, SpanKind.SERVER)
        self._handler: Span | None = None
        self._left_at: float | None = None
        """When its handler ended, or waited no longer for it."""
        self._token: Token[Context] | None = None
        self._has_ended = False

    @property
    def span(self) -> Span:
        """From arrival to outcome."""
        return self._replica

    def enter(self) -> None:
        """The handler begins here and now."""
        self._enter(self._replica, self._begin())

    def enter_batch(self, size: int, links: Sequence[Span]) -> Span:
        """So does a batch of so many calls, of which this is the first that is sampled. Returns its span."""
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
        """The handler has ended, or its call goes on without being looked at."""
        self._left_at = self._now()
        token, self._token = self._token, None
        if token is not None:
            otel_context.detach(token)

    def note_batch(self, batch: Span, size: int, began: float) -> None:
        """The call was in a batch that has ended, whose span is in another trace."""
        if self._has_ended:
            return
        self._begin(began)
        self._left_at = left_at = self._now()
        times = self._clock.ns(began), self._clock.ns(left_at)
        mine = self._tracing.note(f"batch {self.name}", self._replica, *times, {names.BATCH_SIZE: size}, links=[batch])
        self._handler = self._tracing.start(f"handler {self.name}", mine, times[0], names.NO_ATTRIBUTES)

    def end(self, failure: Failure | None = None) -> None:
        """The call has its outcome; or goes back, with why it was not started."""
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
        """The batch that this call entered has ended."""
        self.leave()
        batch.end(self._clock.ns(self._now()))

    def _begin(self, at: float | None = None) -> int:
        """The call waits no longer. Returns when, nanoseconds since 1970."""
        if (earlier := self._handler) is not None:  # it came back unstarted, as it was too late for it
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
        """The batch begins here and now."""
        first, *others = self._calls = calls
        self._size = size
        self._began = now
        self._span = first.enter_batch(size, [each.span for each in others[:MAX_LINKS]])

    def leave(self) -> None:
        """The batch has ended; its calls have no outcomes yet."""
        first, *others = self._calls
        first.end_batch(self._span)
        for each in others:
            each.note_batch(self._span, self._size, self._began)


def traced_batch(parts: Sequence[Part], now: float) -> TracedBatch | None:
    """Enters the batch of these calls, if any of them is sampled."""
    calls = [run.traced for run, _, _ in parts if run.traced is not None]
    return TracedBatch(calls, sum(hi - lo for _, lo, hi in parts), now) if calls else None


def entered(run: ReplicaRun) -> Callable[[], None] | None:
    """Enters the handler of this call, if it is sampled. Returns what leaves it."""
    traced: TracedCall | None = run.traced
    if traced is None:
        return None
    traced.enter()
    return traced.leave


def entered_batch(parts: Sequence[Part], now: float) -> Callable[[], None] | None:
    """The same for a batch."""
    traced = traced_batch(parts, now)
    return None if traced is None else traced.leave


# What a replica's log says of the call in which something is logged, by a handler or of it.
#
# Invariants: asked only where something is logged, so that calls pay nothing; where it cannot be told which call it is,
# nothing is said; never a payload, metadata or a key. Of a session the log has the beginning of its id.
# Owner: the set-up of logs.

SESSION_CHARS: Final = 8
REQUEST_ID_FACT: Final = "request_id"


def facts_of_call() -> Mapping[str, str]:
    """Endpoint, session, id of the call and of its request, and trace, as far as there are any here."""
    facts: dict[str, str] = {}
    place = current_place.get()
    if place is not None:
        try:
            calls = place.contexts()
        except RuntimeError:  # it cannot be told which of several calls
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
