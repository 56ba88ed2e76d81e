"""Spans of calls: between OpenTelemetry's types and W3C Trace Context as it travels.

Purpose: what the shells of routers and replicas, and the client, share. Whoever has no `Tracing` makes no spans.
Invariants: whether a call is sampled is decided by its parent, or drawn once for many calls (`GapSampler`); a span says
by which reason a call failed, never with which message, which may be of a handler.
Owner: a service's app makes one `Tracing` in its set-up, and hands it down.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from opentelemetry.context import Context
from opentelemetry.trace import (
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    TraceState,
    get_current_span,
    set_span_in_context,
)
from opentelemetry.util.types import AnyValue

from slotmesh.calls.trace_context import TraceContext, is_sampled
from slotmesh.errors import Executed, Failure
from slotmesh.telemetry import names
from slotmesh.telemetry.mesh_span import MAX_ATTRIBUTE_CHARS, MeshSpan, SpanLink, link_to

MAX_ALIKE: Final = 16
"""Calls of one frame with the same parent that get spans of their own: a `map` of a thousand calls is one trace."""

MAX_NAME_CHARS: Final = 128
"""Of what is called: callers may have sent any text."""
_MEMBER: Final = r"[a-z0-9][a-z0-9_*/@-]{0,240}=[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e]"
_TRACESTATE: Final = re.compile(rf"{_MEMBER}( ?, ?{_MEMBER}){{0,31}}")

Attributes = Mapping[str, str | int | bool]


class Tracing:
    """Makes the spans of one service."""

    def __init__(
        self, take: Callable[[MeshSpan], None], ratio: float, rate: float, chance: Callable[[], float]
    ) -> None:
        """`take` gets each span that has ended.

        `ratio`: which share of the calls without a parent is sampled, at most `rate` a second. `chance` draws from
        [0, 1).
        """
        self._take = take
        self.roots = GapSampler(ratio, rate, chance)
        """Which calls without a parent are sampled."""

    def start(
        self,
        name: str,
        parent: Span | TraceContext | None,
        started_ns: int,
        attributes: Attributes,
        kind: SpanKind = SpanKind.INTERNAL,
        links: Collection[Span] = (),
    ) -> Span:
        """A span that began then, nanoseconds since 1970; without a parent a trace begins.

        Where the parent is not sampled it is none that is kept.
        """
        of = parent if type(parent) is MeshSpan else _sound(parent)
        if type(of) is TraceContext and not is_sampled(of):
            return NonRecordingSpan(get_current_span(context_of(of)).get_span_context())
        linked = [_link(each) for each in links] if links else []
        kept: dict[str, AnyValue] = dict(attributes)
        for key, value in kept.items():  # callers may have sent texts of any length
            if isinstance(value, str) and len(value) > MAX_ATTRIBUTE_CHARS:
                kept[key] = value[:MAX_ATTRIBUTE_CHARS]
        return MeshSpan(name[:MAX_ATTRIBUTE_CHARS], kind, of, started_ns, kept, linked, self._take)

    def note(
        self,
        name: str,
        parent: Span,
        started_ns: int,
        ended_ns: int,
        attributes: Attributes = names.NO_ATTRIBUTES,
        links: Collection[Span] = (),
    ) -> Span:
        """A span that has ended."""
        span = self.start(name, parent, started_ns, attributes, links=links)
        span.end(max(started_ns, ended_ns))
        return span


class GapSampler:
    """Draws which of many calls are sampled by drawing how many are left out before the next one.

    So a frame in which none is sampled costs one comparison. The spans of a call cost as much as many calls: so there
    is a rate, too, above which none is sampled.
    """

    def __init__(self, ratio: float, rate: float, chance: Callable[[], float]) -> None:
        """`rate`: the most that are sampled in a second."""
        self._ratio = ratio
        self._rate = rate
        self._most_at_once = max(1.0, rate / 10)
        self._allowed = self._most_at_once
        """Of `rate`: what may be sampled now."""
        self._at = 0.0
        """When that was so, monotonic seconds."""
        self._chance = chance
        self._gap = self._draw()

    def take(self, count: int, now: float) -> Sequence[int]:
        """Which of so many calls are sampled, as indices that ascend; at most `MAX_ALIKE`."""
        if self._gap >= count:
            self._gap -= count
            return ()
        taken: list[int] = []
        at = self._gap
        while at < count:
            if len(taken) == MAX_ALIKE:
                at = count + self._draw()  # not sampled is what comes after those within `count`
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
    """Times of a monotonic clock as nanoseconds since 1970, by one offset, so that spans made with it fit together."""

    __slots__ = ("_offset_ns",)

    def __init__(self, now_s: float) -> None:
        """`now_s`: what the monotonic clock says now."""
        self._offset_ns = time.time_ns() - int(now_s * 1e9)

    def ns(self, at_s: float) -> int:
        """That moment."""
        return self._offset_ns + int(at_s * 1e9)


def trace_context_of(span: Span) -> TraceContext:
    """What is said of the span to whom the call goes next."""
    if type(span) is MeshSpan:
        return span.told
    context = span.get_span_context()
    flags = context.trace_flags & 0xFF
    return TraceContext(
        f"00-{context.trace_id:032x}-{context.span_id:016x}-{flags:02x}", context.trace_state.to_header()
    )


def call_name(endpoint: str, method: str) -> str:
    """How spans name what is called."""
    return (f"{endpoint}.{method}" if method else endpoint)[:MAX_NAME_CHARS]


def failed(span: Span, failure: Failure) -> None:
    """The span's call has failed."""
    failed_by(span, failure.reason.value, failure.executed, failure.metadata)


def failed_by(
    span: Span, reason: str, executed: Executed | None = None, facts: Mapping[str, str] = names.NO_FACTS
) -> None:
    """The same, with the reason's name."""
    span.set_attribute(names.REASON, reason)
    if executed is not None:
        span.set_attribute(names.EXECUTED, executed.name.lower())
    if (ref := facts.get(names.LOG_REF)) is not None:
        span.set_attribute(names.LOG_REF_ATTRIBUTE, ref)
    span.set_status(Status(StatusCode.ERROR, reason))


def context_of(parent: Span | TraceContext | None) -> Context:
    """The context of spans with this parent; without one a trace begins."""
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
    # One that is not sound would be told in the log, with what it says, by OpenTelemetry: for each call.
    return TraceState.from_header([parent.tracestate]) if _TRACESTATE.fullmatch(parent.tracestate) else None


def _sound(parent: Span | TraceContext | None) -> TraceContext | None:
    """As mesh's spans take a parent."""
    if isinstance(parent, Span):
        return trace_context_of(parent)
    if parent is None or not parent.tracestate:
        return parent
    state = _state_of(parent)
    return TraceContext(parent.traceparent, "" if state is None else state.to_header())


def _link(span: Span) -> SpanLink:
    if type(span) is MeshSpan:
        return SpanLink(span.trace_id, span.span_id, span.told.tracestate)
    return link_to(span.get_span_context())


_NEVER: Final = 1 << 62
