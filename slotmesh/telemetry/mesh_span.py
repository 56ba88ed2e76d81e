"""A lightweight span for the mesh's own operations, which implements OpenTelemetry's `Span`.

Purpose: a span of the SDK takes 25 µs to create, with its locks, limits and contexts, and as long to encode; a call has
five of them. This one takes 3 µs, and `otlp_spans` encodes it. Users' code gets it as the current span of a handler.
Invariants: only sampled spans are created. A span ends once, and does not change afterwards. No text in it is longer
than `MAX_ATTRIBUTE_CHARS`; `Tracing` truncates those passed at the start. Ids are hexadecimal text, as on the wire, and
converted to numbers only for OpenTelemetry's API.
Owner: `Tracing` creates spans; the code that ends one passes it to the export queue.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Mapping
from random import getrandbits
from typing import Final, NamedTuple

from opentelemetry.attributes import BoundedAttributes
from opentelemetry.trace import Span, SpanContext, SpanKind, Status, StatusCode, TraceFlags, TraceState
from opentelemetry.util.types import AnyValue, Attributes

from slotmesh.calls.trace_context import TraceContext

MAX_ATTRIBUTES: Final = 128
MAX_ATTRIBUTE_CHARS: Final = 1024
"""The limit of each text: attributes, their keys, names, error descriptions."""
MAX_EVENTS: Final = 128
MAX_LINKS: Final = 128
"""The SDK's limit; also applied to the calls of a batch."""

_SAMPLED: Final = TraceFlags(TraceFlags.SAMPLED)
_MAX_NS: Final = 0xFFFF_FFFF_FFFF_FFFF


class SpanLink(NamedTuple):
    """A link to another span."""

    trace_id: str
    span_id: str
    tracestate: str = ""
    is_remote: bool = False
    attributes: Mapping[str, AnyValue] | None = None


class SpanEvent(NamedTuple):
    """An event during the span."""

    name: str
    at_ns: int
    attributes: Mapping[str, AnyValue]


class MeshSpan(Span):
    """One sampled operation."""

    __slots__ = (
        *("attributes", "dropped_attributes", "dropped_events", "dropped_links", "ended_ns", "error", "events"),
        *("has_remote_parent", "is_ok", "kind", "links", "name", "parent_id", "span_id", "started_ns", "trace_context"),
        *("trace_id", "_has_ended", "_take"),
    )

    def __init__(
        self,
        name: str,
        kind: SpanKind,
        parent: MeshSpan | TraceContext | None,
        started_ns: int,
        attributes: dict[str, AnyValue],
        links: list[SpanLink],
        take: Callable[[MeshSpan], None],
    ) -> None:
        """`parent`: a valid sampled context; without one a new trace begins. `take` receives the ended span."""
        self.name = name
        self.kind = kind
        self.span_id = span_id = new_id(64)
        self.trace_context: TraceContext
        """The trace context for outgoing calls."""
        tracestate = ""
        if parent is None:
            self.trace_id, self.parent_id, self.has_remote_parent = new_id(128), "", False
        elif isinstance(parent, MeshSpan):
            self.trace_id, self.parent_id, self.has_remote_parent = parent.trace_id, parent.span_id, False
            tracestate = parent.trace_context.tracestate
        else:
            text = parent.traceparent
            self.trace_id, self.parent_id, self.has_remote_parent = text[3:35], text[36:52], True
            tracestate = parent.tracestate
        self.trace_context = TraceContext(f"00-{self.trace_id}-{span_id}-01", tracestate)
        self.started_ns = started_ns
        self.ended_ns = 0
        """0 until the span has ended."""
        self.attributes = attributes
        self.links = links
        self.events: list[SpanEvent] | None = None
        self.error: str | None = None
        """The error description, possibly empty; None: no error."""
        self.is_ok = False
        """Set by status OK, which overrides an error and is final."""
        self.dropped_attributes = self.dropped_events = self.dropped_links = 0
        self._has_ended = False
        self._take = take

    # -- by OpenTelemetry's API ------------------------------------------------------------------------------------

    def end(self, end_time: int | None = None) -> None:
        """Ends the span and passes it on. A second call has no effect."""
        if not self._has_ended:
            self._has_ended = True
            self.ended_ns = _ns(end_time)
            self._take(self)

    def get_span_context(self) -> SpanContext:
        """The ids of the span."""
        state = self.trace_context.tracestate
        return SpanContext(
            int(self.trace_id, 16),
            int(self.span_id, 16),
            is_remote=False,
            trace_flags=_SAMPLED,
            trace_state=TraceState.from_header([state]) if state else None,
        )

    def set_attributes(self, attributes: Mapping[str, AnyValue]) -> None:
        """Sets several attributes."""
        for key, value in attributes.items():
            self.set_attribute(key, value)

    def set_attribute(self, key: str, value: AnyValue) -> None:
        """Sets an attribute; overwrites an earlier value."""
        if self._has_ended:
            return
        mine = self.attributes
        if len(mine) >= MAX_ATTRIBUTES and key not in mine:
            self.dropped_attributes += 1
        elif (
            type(value) is str
            and len(value) <= MAX_ATTRIBUTE_CHARS
            and type(key) is str
            and 0 < len(key) <= MAX_ATTRIBUTE_CHARS
        ):
            mine[key] = value
        else:
            mine.update(_clean({key: value}))

    def add_event(self, name: str, attributes: Attributes = None, timestamp: int | None = None) -> None:
        """Adds an event."""
        if self._has_ended:
            return
        events = self.events = self.events or []
        if len(events) >= MAX_EVENTS:
            self.dropped_events += 1
            return
        events.append(SpanEvent(name[:MAX_ATTRIBUTE_CHARS], _ns(timestamp), _clean(attributes)))

    def add_link(self, context: SpanContext, attributes: Attributes = None) -> None:
        """Adds a link to another span."""
        if self._has_ended or not context.is_valid:
            return
        if len(self.links) >= MAX_LINKS:
            self.dropped_links += 1
            return
        self.links = [*self.links, link_to(context)._replace(attributes=_clean(attributes))]

    def update_name(self, name: str) -> None:
        """Renames the span."""
        if not self._has_ended:
            self.name = name[:MAX_ATTRIBUTE_CHARS]

    def is_recording(self) -> bool:
        """Whether the span has not ended."""
        return not self._has_ended

    def set_status(self, status: Status | StatusCode, description: str | None = None) -> None:
        """Sets the outcome: the latest error counts, until OK is set."""
        given = status if isinstance(status, Status) else Status(status, description)
        if self._has_ended or self.is_ok or given.status_code is StatusCode.UNSET:
            return
        self.is_ok = given.status_code is StatusCode.OK
        self.error = None if self.is_ok else (given.description or "")[:MAX_ATTRIBUTE_CHARS]

    def record_exception(
        self,
        exception: BaseException,
        attributes: Attributes = None,
        timestamp: int | None = None,
        escaped: bool = False,
    ) -> None:
        """Adds an exception as an event, with its text. Called by users' code only."""
        kind = type(exception)
        facts: dict[str, AnyValue] = {
            "exception.type": kind.__qualname__
            if kind.__module__ == "builtins"
            else f"{kind.__module__}.{kind.__qualname__}",
            "exception.message": str(exception),
            "exception.stacktrace": "".join(traceback.format_exception(exception)),
            "exception.escaped": str(escaped),
        }
        self.add_event("exception", {**facts, **(attributes or {})}, timestamp)


def new_id(bits: int) -> str:
    """A random non-zero id, in hexadecimal."""
    return f"{getrandbits(bits) or 1:0{bits // 4}x}"


def link_to(span: SpanContext) -> SpanLink:
    """A link to another span."""
    return SpanLink(f"{span.trace_id:032x}", f"{span.span_id:016x}", span.trace_state.to_header(), span.is_remote)


def _clean(attributes: Attributes) -> dict[str, AnyValue]:
    """Attributes of exportable types, truncated, as the SDK would take them."""
    if attributes:
        attributes = {key[:MAX_ATTRIBUTE_CHARS] if type(key) is str else key: attributes[key] for key in attributes}
    return dict(BoundedAttributes(MAX_ATTRIBUTES, attributes, max_value_len=MAX_ATTRIBUTE_CHARS))


def _ns(at: float | None) -> int:
    """A time in nanoseconds; the present time if none is given, or it is no number."""
    try:
        return time.time_ns() if at is None else min(max(int(at), 0), _MAX_NS)
    except (TypeError, ValueError, OverflowError):
        return time.time_ns()
