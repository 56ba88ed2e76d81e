"""Which trace a request belongs to, and the ingress's span of it, by OpenTelemetry's conventions for servers of HTTP.

Purpose: a client's W3C Trace Context is passed on to the mesh with the call's payload; if the request is sampled, the
ingress's span stands between.
Invariants: a request that is not sampled costs one comparison, or a look at its `traceparent`; a span has the route's
path and never the values of its parameters, nor query, headers, token or body; of requests that are sampled by their
clients, a limited number a second is followed, since any client can ask for it.
Owner: the front, which begins one a request, and ends it with its answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from opentelemetry.trace import Span, SpanKind, Status, StatusCode

from ingress_service.core.inference import InferencePath
from ingress_service.core.problems import Problem
from ingress_service.core.routes import DEFAULT_LABEL, Matched, WrongMethod
from slotmesh.calls.trace_context import TraceContext, is_sampled, unsampled
from slotmesh.client.calls.call_spec import TracedPayload, trace_metadata
from slotmesh.telemetry import names
from slotmesh.telemetry.tracing import GapSampler, Tracing, WallClock, trace_context_of

MAX_FOLLOWED: Final = 200.0
"""Requests a second that are sampled because their clients ask for it; others travel on as not sampled."""
FoundPath = Matched | WrongMethod | InferencePath
"""What a path stands for."""
_METHODS: Final = frozenset({"CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "TRACE"})
_OTHER: Final = "_OTHER"
_MAX_PATH_CHARS: Final = 256


class RequestTrace:
    """Of one request that has a trace."""

    __slots__ = ("_clock", "_span", "context")

    def __init__(self, context: TraceContext, span: Span | None = None, clock: WallClock | None = None) -> None:
        """`span`: the ingress's own, where the request is sampled; `clock` is what it began by."""
        self.context = context
        """The context that the mesh gets as the call's parent."""
        self._span = span
        self._clock = clock

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Of an rpc that the request becomes."""
        return trace_metadata(self.carried_by(b"")) or ()

    @property
    def trace_id(self) -> str:
        """For the log; empty where no span is kept."""
        return "" if self._span is None else self.context.traceparent[3:35]

    def carried_by(self, payload: bytes, http: bytes = b"") -> bytes:
        """The payload of a call that belongs to this trace, and came by this request."""
        return carried(self, payload, http)

    def end(self, status: int, failure: Problem | None, now: float, *, has_left: bool = False) -> None:
        """The request has been answered, or its client has left before. `now` is the loop's time."""
        span = self._span
        if span is None or self._clock is None:
            return
        span.set_attribute(names.HTTP_STATUS, status)
        if has_left:
            span.set_attribute(names.OUTCOME, "client left")
        if failure is not None:
            attributes = {names.REASON: failure.reason, names.EXECUTED: failure.executed}
            if failure.log_ref:
                attributes[names.LOG_REF_ATTRIBUTE] = failure.log_ref
            if failure.status >= 500:
                attributes[names.ERROR_TYPE] = failure.reason
                span.set_status(Status(StatusCode.ERROR, failure.reason))
            span.set_attributes(attributes)
        span.end(self._clock.ns(now))


def carried(trace: RequestTrace | None, payload: bytes, http: bytes) -> bytes:
    """The payload of a call that came by this HTTP request, and belongs to this trace, if it has one."""
    traced = TracedPayload(payload)
    traced.trace = TraceContext("", "", http) if trace is None else trace.context._replace(http=http)
    return traced


class RequestSpans:
    """Begins them."""

    def __init__(self, tracing: Tracing | None = None) -> None:
        """`tracing`: None if the ingress makes no spans, and passes on the contexts of clients."""
        self._tracing = tracing
        self._followed = GapSampler(1.0, MAX_FOLLOWED, lambda: 0.0)

    def begin(
        self, scope: Mapping[str, Any], given: TraceContext | None, found: FoundPath | None, now: float
    ) -> RequestTrace | None:
        """`given`: the context that the client has sent. None: the request has no trace."""
        tracing = self._tracing
        if given is not None:
            followed = self.followed(given, now)
            if tracing is None or not is_sampled(followed.context):
                return followed
        elif tracing is None or not tracing.roots.take(1, now):
            return None
        clock = WallClock(now)
        name, attributes = _described(scope, found)
        span = tracing.start(name, given, clock.ns(now), attributes, SpanKind.SERVER)
        return RequestTrace(trace_context_of(span), span, clock)

    def followed(self, given: TraceContext, now: float) -> RequestTrace:
        """The trace of a client's context, which is sampled if it may be. Without a span of the ingress."""
        return RequestTrace(given if not is_sampled(given) or self._followed.take(1, now) else unsampled(given))


def _described(scope: Mapping[str, Any], found: FoundPath | None) -> tuple[str, dict[str, str | int | bool]]:
    """Name and attributes of a request's span."""
    method = scope["method"] if scope["method"] in _METHODS else _OTHER
    attributes: dict[str, str | int | bool] = {
        names.HTTP_METHOD: method,
        names.URL_SCHEME: scope["scheme"],
        names.PROTOCOL_VERSION: scope["http_version"],
    }
    name = method if method != _OTHER else "HTTP"
    if found is not None:
        route = _route(found, scope["raw_path"])
        attributes[names.ROUTE] = route
        is_plain = isinstance(found, Matched) and not found.arguments
        attributes[names.URL_PATH] = scope["path"][:_MAX_PATH_CHARS] if is_plain else route
        name = f"{name} {route}"
    if isinstance(found, Matched):
        attributes[names.ENDPOINT] = found.endpoint
        attributes[names.METHOD] = found.method
    elif isinstance(found, InferencePath) and found.model:
        attributes[names.ENDPOINT] = found.model[:_MAX_PATH_CHARS]
    return name, attributes


def _route(found: FoundPath, raw_path: bytes) -> str:
    """The template of the path."""
    if found.label != DEFAULT_LABEL:
        return found.label
    return "/{endpoint}/{method}" if raw_path.count(b"/") > 1 else "/{endpoint}"
