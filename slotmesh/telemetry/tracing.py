"""Spans of calls, and the conversion between OpenTelemetry's contexts and W3C Trace Context on the wire.

Purpose: shared by the shells of routers and replicas, and the client. Without a `Tracing` no spans are made.
Invariants: a call's parent decides whether it is sampled; for calls without one `GapSampler` does, for many calls
together. A span contains the reason of a failure, never the message, which may come from a handler.
Owner: a service's app creates one `Tracing` at its start, and passes it on.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from opentelemetry.context import Context
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    Tracer,
    TraceState,
    get_current_span,
    set_span_in_context,
)

from slotmesh.calls.trace_context import TraceContext
from slotmesh.errors import Executed, Failure
from slotmesh.telemetry import names

MAX_ALIKE: Final = 16
"""Calls of one frame with the same parent that get their own spans: a `map` of a thousand calls is one trace."""

MAX_LINKS: Final = 128
"""The links of a span, as the SDK limits them: calls of one batch."""
MAX_TEXT_CHARS: Final = 1024
"""The limit of the name of a span, and of each text among its attributes."""
MAX_NAME_CHARS: Final = 128
"""The limit of the name of a call, which callers choose."""
_MEMBER: Final = r"[a-z0-9][a-z0-9_*/@-]{0,240}=[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e]"
_TRACESTATE: Final = re.compile(rf"{_MEMBER}( ?, ?{_MEMBER}){{0,31}}")

Attributes = Mapping[str, str | int | bool]


class Tracing:
    """Makes the spans of one service."""

    def __init__(self, tracer: Tracer, ratio: float, rate: float, chance: Callable[[], float]) -> None:
        """`tracer` samples every span that it is asked for.

        `ratio`: the share of calls without a parent that is sampled, at most `rate` a second. `chance` draws from
        [0, 1).
        """
        self._tracer = tracer
        self.roots = GapSampler(ratio, rate, chance)
        """Samples calls without a parent."""

    def start(
        self,
        name: str,
        parent: Span | TraceContext | None,
        started_ns: int,
        attributes: Attributes,
        kind: SpanKind = SpanKind.INTERNAL,
        links: Collection[Span] = (),
    ) -> Span:
        """A span that began at a time in nanoseconds since 1970; without a parent a new trace begins.

        A non-recording span if the parent is not sampled.
        """
        context = context_of(parent)
        of = get_current_span(context).get_span_context()
        if of.is_valid and not of.trace_flags.sampled:
            return NonRecordingSpan(of)
        linked = [Link(each.get_span_context()) for each in links]
        # Callers choose texts of any length; the SDK would log a line for each that it truncates.
        short = {key: it[:MAX_TEXT_CHARS] if isinstance(it, str) else it for key, it in attributes.items()}
        return self._tracer.start_span(name[:MAX_TEXT_CHARS], context, kind, short, linked, started_ns)

    def note(
        self,
        name: str,
        parent: Span | None,
        started_ns: int,
        ended_ns: int,
        attributes: Attributes = names.NO_ATTRIBUTES,
        links: Collection[Span] = (),
    ) -> Span:
        """Makes a span that has already ended."""
        span = self.start(name, parent, started_ns, attributes, links=links)
        span.end(max(started_ns, ended_ns))
        return span


class GapSampler:
    """Samples calls by drawing how many are skipped before the next one.

    A frame without a sampled call costs one comparison. As the spans of one call cost as much as many calls, the rate
    of sampled calls is limited.
    """

    def __init__(self, ratio: float, rate: float, chance: Callable[[], float]) -> None:
        """`rate`: the limit of sampled calls in a second."""
        self._ratio = ratio
        self._rate = rate
        self._most_at_once = max(1.0, rate / 10)
        self._allowed = self._most_at_once
        """The part of `rate` that is available at `_at`."""
        self._at = 0.0
        """The time of `_allowed`, monotonic seconds."""
        self._chance = chance
        self._gap = self._draw()

    def take(self, count: int, now: float) -> Sequence[int]:
        """The ascending indices of the sampled calls among `count` calls; at most `MAX_ALIKE`."""
        if self._gap >= count:
            self._gap -= count
            return ()
        taken: list[int] = []
        at = self._gap
        while at < count:
            if len(taken) == MAX_ALIKE:
                at = count + self._draw()  # the limit is reached: skips the rest of these calls
                break
            taken.append(at)
            at += 1 + self._draw()
        self._gap = at - count
        self._allowed = min(self._most_at_once, self._allowed + max(0.0, now - self._at) * self._rate)
        self._at = now
        del taken[int(self._allowed) :]
        self._allowed -= len(taken)
        return taken

    def _draw(self) -> int:
        if self._ratio <= 0:
            return _NEVER
        if self._ratio >= 1:
            return 0
        return min(_NEVER, int(math.log(1.0 - self._chance()) / math.log1p(-self._ratio)))


class WallClock:
    """Converts monotonic times to nanoseconds since 1970 by one offset, consistently in a process."""

    __slots__ = ("_offset_ns",)

    def __init__(self, now_s: float) -> None:
        """`now_s`: the present time of the monotonic clock."""
        self._offset_ns = time.time_ns() - int(now_s * 1e9)

    def ns(self, at_s: float) -> int:
        """The wall-clock time of a monotonic time."""
        return self._offset_ns + int(at_s * 1e9)


def trace_context_of(span: Span) -> TraceContext:
    """The trace context for calls below this span."""
    context = span.get_span_context()
    flags = context.trace_flags & 0xFF
    return TraceContext(
        f"00-{context.trace_id:032x}-{context.span_id:016x}-{flags:02x}", context.trace_state.to_header()
    )


def call_name(endpoint: str, method: str) -> str:
    """The name of a call in spans."""
    return (f"{endpoint}.{method}" if method else endpoint)[:MAX_NAME_CHARS]


def failed(span: Span, failure: Failure) -> None:
    """Marks the span as failed."""
    failed_by(span, failure.reason.value, failure.executed, failure.metadata)


def failed_by(
    span: Span, reason: str, executed: Executed | None = None, facts: Mapping[str, str] = names.NO_FACTS
) -> None:
    """Marks the span as failed, by the name of the reason."""
    span.set_attribute(names.REASON, reason)
    if executed is not None:
        span.set_attribute(names.EXECUTED, executed.name.lower())
    if (ref := facts.get(names.LOG_REF)) is not None:
        span.set_attribute(names.LOG_REF_ATTRIBUTE, ref)
    span.set_status(Status(StatusCode.ERROR, reason))


def context_of(parent: Span | TraceContext | None) -> Context:
    """The OpenTelemetry context with this parent; without one a new trace begins."""
    if parent is None:
        return Context()
    if isinstance(parent, Span):
        return set_span_in_context(parent, Context())
    text = parent.traceparent
    context = SpanContext(
        int(text[3:35], 16),
        int(text[36:52], 16),
        is_remote=True,
        trace_flags=TraceFlags(int(text[53:55], 16)),
        trace_state=_state_of(parent),
    )
    return set_span_in_context(NonRecordingSpan(context), Context())


def _state_of(parent: TraceContext) -> TraceState | None:
    # OpenTelemetry would log an invalid tracestate, with its content, for each call.
    return TraceState.from_header([parent.tracestate]) if _TRACESTATE.fullmatch(parent.tracestate) else None


_NEVER: Final = 1 << 62
