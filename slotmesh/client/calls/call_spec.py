"""How calls are made: the specification of calls of one method of a view; their traces; the limits of payloads.

Invariant: each view and method has one `CallSpec`, so that comparing options is one identity check for each call, and
the options' message is built once.

With the option `inherits`, a call takes over the trace of the call in which it is made, and at most its remaining time.
It takes over nothing outside of a call, or if the place cannot determine which of several calls is meant. In a batch
method the calls of the batch count together: the longest remaining time, and no trace unless there is one call.

Few calls have a trace context. It is attached to the payload, from where the call is made to where its batch is
written, however often it is sent: so no other structure needs a place for it, and calls without one pay nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import floor, frexp, ldexp
from typing import Any, Final, TypeVar

from opentelemetry import trace

from slotmesh.calls.call_options import IDENTIFIED, CallRpc
from slotmesh.calls.trace_context import TraceContext, columns_of, is_tracestate
from slotmesh.client.calls.options import BadOption, ViewOptions
from slotmesh.client.calls.queues import CallQueue
from slotmesh.codec import (
    OCTET_STREAM,
    PROTOBUF,
    EncodeError,
    decoder,
    decoder_of_each,
    encode_arguments,
    encode_arguments_of_each,
)
from slotmesh.errors import Executed, Failure, Reason
from slotmesh.handlers.context import CallContext, asking, current_place
from slotmesh.status import to_exception
from slotmesh.streams.limits import MAX_INLINE_BYTES, MAX_PAYLOAD_BYTES
from slotmesh.v1 import router_service_pb2

_STEPS: int = 64
"""Distinct times between one and its double: calls that are made together share their options, and so a batch."""
_SHORTEST_S: float = 0.001
"""Shorter times are not rounded."""


def time_left_s() -> float | None:
    """The remaining time of the executed call, rounded down by 1.6 % at most; None: no limit, or no call."""
    each = [call.time_left() for call in _calls()]
    known = [left_s for left_s in each if left_s is not None]
    if not known or len(known) < len(each):
        return None
    return rounded_down(max(known))


def inherited_trace() -> TraceContext | None:
    """The current span, else the one of the executed call; None if there is none."""
    if (current := current_trace()) is not None:
        return current
    calls = _calls()
    if len(calls) != 1 or not calls[0].traceparent:
        return None
    return TraceContext(calls[0].traceparent, calls[0].tracestate)


def rounded_down(time_s: float) -> float:
    """The time, or a little less: one of few values."""
    if time_s < _SHORTEST_S:
        return time_s
    step = ldexp(1.0, frexp(time_s)[1] - 1) / _STEPS
    return floor(time_s / step) * step


def _calls() -> Sequence[CallContext]:
    """The calls that are executed here."""
    asking.is_known = True
    place = current_place.get()
    if place is None:
        return ()
    try:
        return place.contexts()
    except RuntimeError:  # it is unknown which of several calls runs here
        return ()


Encode = Callable[[tuple[Any, ...], Mapping[str, Any]], bytes]
TraceOf = Callable[[], TraceContext | None]
"""Returns the trace of the caller."""


class TracedPayload(bytes):
    """The payload of a call that was made in a span."""

    trace: TraceContext


def traced_encode(encode: Encode, trace_of: TraceOf) -> Encode:
    """Encodes arguments, and attaches the trace of the caller."""

    def encoded(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes:
        (payload,) = traced_payloads([encode(args, kwargs)], trace_of)
        return payload

    return encoded


def traced_payloads(payloads: list[bytes], trace_of: TraceOf) -> list[bytes]:
    """The payloads of calls that are made now, with the current trace; unchanged if there is none."""
    context = trace_of()
    if context is None:
        return payloads
    traced = list(map(TracedPayload, payloads))
    for each in traced:
        each.trace = context
    return list[bytes](traced)


def current_trace() -> TraceContext | None:
    """The span that is current here; None if there is none."""
    span = trace.get_current_span().get_span_context()
    if not span.is_valid:
        return None
    tracestate = span.trace_state.to_header()
    traceparent = f"00-{span.trace_id:032x}-{span.span_id:016x}-{span.trace_flags & 0xFF:02x}"
    return TraceContext(traceparent, tracestate if is_tracestate(tracestate) else "")


def write_traces(batch: router_service_pb2.CallBatch, payloads: Sequence[bytes]) -> None:
    """Sets the columns of a batch with the spans that its calls were made in."""
    traces = [each.trace if isinstance(each, TracedPayload) else None for each in payloads]
    if any(traces):
        starts, traceparents, tracestates, requests = columns_of(traces)
        batch.trace_starts.extend(starts)
        batch.traceparents.extend(traceparents)
        batch.tracestates.extend(tracestates)
        batch.http_requests.extend(requests)


def request_bytes(payload: bytes) -> int:
    """Bytes of the call in a frame beside its payload: its HTTP request."""
    return len(payload.trace.http) if isinstance(payload, TracedPayload) else 0


def trace_metadata(payload: bytes) -> tuple[tuple[str, str], ...] | None:
    """The trace in gRPC metadata, for an rpc of its own; None if the call was made in no span."""
    if not isinstance(payload, TracedPayload):
        return None
    traceparent, tracestate, _ = payload.trace
    if not traceparent:
        return None
    metadata = (("traceparent", traceparent),)
    return (*metadata, ("tracestate", tracestate)) if tracestate else metadata


PAYLOADS: Final = object()
"""In place of a type of results: payloads are returned undecoded, for callers that pass them on."""
EXECUTED_PAYLOADS: Final = object()
"""The same, each in a pair with the backend that executed the call; empty if the router has not reported it."""

_SAME: Final = object()

PayloadT = TypeVar("PayloadT")
ResultT = TypeVar("ResultT")


@dataclass(frozen=True, slots=True, eq=False)
class MethodSignature:
    """The types of a method's results, and the names of its parameters."""

    result: Any = Any
    """Type of the result of a call."""
    value: Any = Any
    """Type of one value of a call whose values are taken one by one."""
    names: tuple[str, ...] = ()
    """Parameters that may be positional or named, in order. Empty if they are not known."""

    def bound(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        """Arguments all positional or all named, as calls carry them; unchanged where that is not possible."""
        named = self.names[: len(args)]
        if not args or not kwargs or len(named) < len(args) or not kwargs.keys().isdisjoint(named):
            return args, kwargs
        return (), {**dict(zip(named, args, strict=True)), **kwargs}


UNTYPED: Final = MethodSignature()


class CallSpec:
    """All that calls of one method of one view share."""

    __slots__ = (
        "_streamed",
        "content_type",
        "decode",
        "decode_each",
        "encode",
        "endpoint",
        "group",
        "method",
        "options",
        "ordering_key",
        "queue",
        "rpc",
        "signature",
        "stop_generation",
        "streaming",
        "tenant",
        "trace_of",
        "traced",
        "wanted",
        "wire",
        "wire_bytes",
    )

    def __init__(
        self,
        endpoint: str,
        method: str,
        options: ViewOptions,
        queue: CallQueue[Any],
        wanted: Any = UNTYPED,
        rpc: CallRpc = CallRpc.STREAM_CALLS,
    ) -> None:
        """`wanted`: the type of the results, or a `MethodSignature`. `rpc`: by which calls are made."""
        self.rpc = rpc
        self.endpoint = endpoint
        self.method = method
        self.options = options
        self.ordering_key = options.ordering_key
        self.tenant = options.tenant
        self.queue = queue
        """Where its calls wait their turn."""
        self.streaming = options.streaming
        """Whether a call's sink is a `CallValues`, in place of a future."""
        self._streamed: CallSpec | None = None
        self.signature = wanted if isinstance(wanted, MethodSignature) else MethodSignature(wanted, wanted)
        self.wanted = wanted = self.signature.value if options.streaming else self.signature.result
        """Type of the results."""
        self.content_type = options.content_type
        self.stop_generation = queue.stop.generation if queue.stop is not None and options.stops else 0
        """Which calls of the lane fail after a failure; 0 for those that go on."""
        self.wire = options.to_wire(method, self.stop_generation, rpc)
        """Shared by all batches; never changed."""
        self.wire_bytes = self.wire.ByteSize()
        self.traced = options.traced or options.inherits
        """Whether payloads may say in which span their calls were made."""
        self.trace_of: TraceOf = inherited_trace if options.inherits else current_trace
        """The parent of calls that are made where it is called."""
        self.group = None if queue.groups is None else queue.groups.of(self.wire, (wanted, self.traced))
        """Of a lane's calls: the lanes with which they share batches."""
        self.encode: Callable[[tuple[Any, ...], Mapping[str, Any]], bytes] = self._encode
        """Raises EncodeError, a TypeError."""
        self.decode: Callable[[bytes], Any] | None = None
        """None if the payload is the result. Raises DecodeError."""
        self.decode_each: Callable[[list[bytes]], list[Any]] = list
        """As `decode`, for neighbours."""
        if wanted is PAYLOADS or wanted is EXECUTED_PAYLOADS:
            self.encode = self._encode_bytes
        elif self.content_type == OCTET_STREAM:
            self._decoder(decoder)  # refuses types that bytes cannot be decoded into
            self.encode = self._encode_bytes
        elif not options.reply:
            pass  # there is no result to decode
        elif self.content_type == PROTOBUF and wanted is Any:
            self.encode = self._refuse
        else:
            self.decode = self._decoder(partial(decoder, result_of=f"{endpoint}.{method}"))
            self.decode_each = self._decoder(decoder_of_each)
        if self.traced:
            self.encode = traced_encode(self.encode, self.trace_of)
        if options.request_id and rpc not in IDENTIFIED:
            self.encode = _refuse_request_id

    def streamed(self) -> CallSpec:
        """The same, for calls whose values are taken one by one. In line with the others.

        Raises:
            TypeError: calls of this view have no results.
        """
        if self._streamed is None:
            if not self.options.reply:
                raise TypeError(f"{self.endpoint}.{self.method}: calls without a reply have no values to iterate over")
            self._streamed = self.but(options=replace(self.options, streaming=True))
        return self._streamed

    def by(self, rpc: CallRpc) -> CallSpec:
        """The same, for calls by this rpc."""
        return CallSpec(self.endpoint, self.method, self.options, self.queue, self.signature, rpc)

    def but(
        self, *, options: ViewOptions | None = None, queue: CallQueue[Any] | None = None, wanted: Any = _SAME
    ) -> CallSpec:
        """The same with other options, queue, or type of results; of a lane, for its newest generation.

        Raises:
            TypeError: the content type cannot carry results of the requested type.
        """
        signature = self.signature if wanted is _SAME else replace(self.signature, result=wanted, value=wanted)
        return CallSpec(self.endpoint, self.method, options or self.options, queue or self.queue, signature, self.rpc)

    def encode_each(self, columns: tuple[Iterable[Any], ...]) -> list[bytes]:
        """The payloads of a call for each row of `columns`."""
        if self.options.request_id:
            _refuse_request_id((), {})
        if self.content_type == PROTOBUF and self.wanted is Any and self.options.reply:
            self._refuse((), {})
        payloads = encode_arguments_of_each(self.content_type, columns)
        return traced_payloads(payloads, self.trace_of) if self.traced else payloads

    def result_of(self, payload: bytes) -> Any:
        """The result in the payload. Raises DecodeError if it is not what was asked for."""
        return payload if self.decode is None else self.decode(payload)

    def _decoder(
        self, decoder_for: Callable[[str, Any], Callable[[PayloadT], ResultT]]
    ) -> Callable[[PayloadT], ResultT]:
        try:
            return decoder_for(self.content_type, self.wanted)
        except TypeError as error:
            raise TypeError(f"{self.endpoint}.{self.method} cannot return {self.wanted!r}: {error}") from None

    def _encode(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes:
        if kwargs:
            args, kwargs = self.signature.bound(args, kwargs)
        return encode_arguments(self.content_type, args, kwargs)

    @staticmethod
    def _encode_bytes(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes:
        if len(args) == 1 and type(args[0]) is bytes and not kwargs:
            return args[0]
        return encode_arguments(OCTET_STREAM, args, kwargs)

    def _refuse(self, _args: tuple[Any, ...], _kwargs: Mapping[str, Any]) -> bytes:
        raise TypeError(
            f"results in {PROTOBUF} need the class of their message: "
            f"{self.endpoint}.{self.method}.returning(MessageClass)(...)"
        )


def _refuse_request_id(_args: tuple[Any, ...], _kwargs: Mapping[str, Any]) -> bytes:
    raise BadOption(
        "request_id",
        "is of one call by an rpc of its own: METHOD.unary(…) or METHOD.unary_stream(…). Calls on a stream need none: "
        "the client sends them again if their router is lost, and none is executed twice",
    )


# -- how large a payload may be ----------------------------------------------------------------------------------------

MAX_UNARY_BYTES: Final = MAX_INLINE_BYTES
"""Of a call by a unary rpc, which has no chunks."""

MAX_BYTES_UNTIL_KNOWN: Final = MAX_PAYLOAD_BYTES
"""The limit until the router has stated its own."""


def too_large(actual: int, limit: int, *, was_sent: bool = False) -> Failure:
    """The failure of a call with a payload of `actual` bytes. `was_sent`: to another router."""
    return Failure(
        reason=Reason.PAYLOAD_TOO_LARGE,
        message=f"the payload has {actual} bytes, encoded, and the limit is {limit} bytes: send less in one call",
        executed=Executed.UNKNOWN if was_sent else Executed.NO,
        metadata={"limit": str(limit), "actual": str(actual)},
    )


# -- calls by an rpc of their own: payload and timeout -----------------------------------------------------------------

_SLACK_S: Final = 1.0
"""The transport's deadline is this much later than the router's, so that the router's answer can arrive."""

_LONGEST_RPC_S: Final = 10**8
"""The transport takes far longer timeouts for deadlines that have passed. The router has the true one."""


def payload_of(spec: CallSpec, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes:
    """The payload of a call.

    Raises:
        TypeError: the content type cannot carry the arguments.
        PayloadTooLarge: they do not fit into an rpc.
    """
    try:
        payload = spec.encode(args, kwargs)
    except EncodeError as error:
        raise EncodeError(f"{spec.endpoint}.{spec.method}: {error}") from None
    if len(payload) > MAX_UNARY_BYTES:
        raise to_exception(too_large(len(payload), MAX_UNARY_BYTES), endpoint=spec.endpoint, method=spec.method)
    return payload


def rpc_timeout_s(timeout_s: float | None) -> float | None:
    """What the transport gives an rpc that has `timeout_s` at the router."""
    return None if timeout_s is None else min(timeout_s + _SLACK_S, _LONGEST_RPC_S)
