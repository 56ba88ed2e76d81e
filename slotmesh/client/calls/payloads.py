"""Payloads of calls: their trace contexts, their limits, and the payloads of a map.

Few calls have a trace context. It is attached to the payload, from where the call is made to where its batch is
written, however often it is sent: so no other structure needs a place for it, and calls without one pay nothing.
Owner of trace contexts: the `CallSpec` of a view that is `traced`, or that `inherits`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, islice
from typing import Any, Final

from opentelemetry import trace

from slotmesh.calls.trace_context import TraceContext, columns_of, is_tracestate
from slotmesh.client.calls.buffer import BufferShare
from slotmesh.codec.arrays import is_array
from slotmesh.errors import Executed, Failure, Reason
from slotmesh.streams.limits import CHUNK_BYTES, MAX_INLINE_BYTES, MAX_PAYLOAD_BYTES
from slotmesh.v1 import router_service_pb2

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


# -- how large a payload may be ----------------------------------------------------------------------------------------

MAX_UNARY_BYTES: Final = MAX_INLINE_BYTES
"""Of a call by a unary rpc, which has no chunks."""

MAX_BYTES_UNTIL_KNOWN: Final = MAX_PAYLOAD_BYTES
"""The limit until the router has stated its own."""


def limit_of(stated: int, *, cuts: bool) -> int:
    """The largest payload for a router with this stated limit. `cuts`: it takes chunks."""
    limit = stated or MAX_INLINE_BYTES
    return limit if cuts else min(limit, MAX_INLINE_BYTES)


def too_large(actual: int, limit: int, *, was_sent: bool = False) -> Failure:
    """The failure of a call with a payload of `actual` bytes. `was_sent`: to another router."""
    return Failure(
        reason=Reason.PAYLOAD_TOO_LARGE,
        message=f"the payload has {actual} bytes, encoded, and the limit is {limit} bytes: send less in one call",
        executed=Executed.UNKNOWN if was_sent else Executed.NO,
        metadata={"limit": str(limit), "actual": str(actual)},
    )


# -- how many calls fit into a frame and into the window ---------------------------------------------------------------


def inline_sizes(sizes: list[int]) -> list[int]:
    """Bytes that payloads of these sizes add to a frame: 0 for those that follow it in chunks."""
    return [0 if size > CHUNK_BYTES else size for size in sizes]


def fitting_calls(sizes: list[int], nbytes: int, room: int, *, cuts: bool) -> int:
    """How many of these calls fit into a window of `nbytes` bytes, and into a frame that has `room` bytes left."""
    fitting = bisect_right(list(accumulate(sizes)), nbytes)
    return min(fitting, bisect_right(list(accumulate(inline_sizes(sizes) if cuts else sizes)), room))


# -- the payloads of a map: its iterables are read and encoded piece by piece, as its calls find room ------------------

PIECE_CALLS: Final = 4_096
"""Items of one piece at most."""
PIECE_BYTES: Final = 1024 * 1024
"""A piece has this number of bytes, or one item, if its items are as large as those of the piece before."""
WHOLE_CALLS: Final = 1_024
"""A map of a list with at most this number of items is one piece."""
_FIRST_CALLS: Final = 64
"""Items of the first piece, whose size is not known."""
_SLICED: Final = (list, tuple, range)

EncodeColumns = Callable[[tuple[Iterable[Any], ...]], list[bytes]]
Piece = tuple[list[bytes], int]
"""Payloads, owned by the receiver, and their bytes."""


def pieces_of(encode: EncodeColumns, columns: tuple[Iterable[Any], ...]) -> Iterator[Piece]:
    """The payloads of a map of these iterables. Items are read once, in order.

    Raises, from the iterator: what `encode` does: EncodeError, and ValueError if the iterables differ in length. Later
    pieces do not raise it again.
    """
    if all(isinstance(each, _SLICED) and len(each) <= WHOLE_CALLS for each in columns) or not _are_iterable(columns):
        yield _piece(encode(columns))  # which raises if they are not iterable
        return
    readers = [_reader_of(each) for each in columns]
    count = _FIRST_CALLS
    while any(map(len, items := tuple(read(count) for read in readers))):
        piece = payloads, nbytes = _piece(encode(items))
        yield piece
        count = max(1, min(PIECE_CALLS, count * 8, PIECE_BYTES * len(payloads) // (nbytes + 1)))


def first_pieces(pieces: Iterator[Piece], share: BufferShare) -> tuple[list[bytes], int, bool]:
    """The payloads of as many pieces as there is room for, and of one more; their bytes; whether that is all."""
    payloads, nbytes = next(pieces, ([], 0))
    while share.has_room(len(payloads), nbytes):
        piece = next(pieces, None)
        if piece is None:
            return payloads, nbytes, True
        payloads += piece[0]
        nbytes += piece[1]
    return payloads, nbytes, False


def _piece(payloads: list[bytes]) -> Piece:
    return payloads, sum(map(len, payloads))


def _are_iterable(columns: tuple[Iterable[Any], ...]) -> bool:
    for each in columns:
        try:
            iter(each)
        except TypeError:
            return False
    return True


def _reader_of(column: Iterable[Any]) -> Callable[[int], Any]:
    """Returns the next items of the column, up to a number of them."""
    if isinstance(column, _SLICED) or is_array(column):
        return _SliceReader(column).read
    items = iter(column)
    return lambda count: list(islice(items, count))


class _SliceReader:
    """Of what is sliced, and stays what it is: an array's rows are encoded together."""

    def __init__(self, column: Any) -> None:
        self._column = column
        self._at = 0

    def read(self, count: int) -> Any:
        start, self._at = self._at, self._at + count
        return self._column[start : self._at]
