"""The trace and the HTTP request that calls belong to, and the columns of a batch for them. Pure.

Purpose: metadata is the same for all calls of a batch, and a `traceparent` there would split every batch. So batches
have columns for it, with an entry for each stretch of calls that share one; a batch without any has none. Ids that
clients and proxies give their requests (X-Request-ID) are restricted to texts that are short and safe in a header, a
log line and a document.
Owner: pure functions, for clients, routers and replicas.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import compress
from typing import Final, NamedTuple, cast

MAX_TRACEPARENT_CHARS: Final = 128
MAX_TRACESTATE_CHARS: Final = 512
MAX_HTTP_BYTES: Final = 8 * 1024
"""Of one HttpRequest."""

_SAMPLED: Final = 0x01

_TRACEPARENT: Final = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-[!-~]*)?")
_TRACESTATE: Final = re.compile(r"[ -~]*")


class TraceContext(NamedTuple):
    """The span that a call was made in, and the HTTP request that it came by."""

    traceparent: str
    """Empty: it was made in no known span."""
    tracestate: str = ""
    http: bytes = b""
    """An HttpRequest, which is not parsed on the way; empty: it did not come by HTTP."""


Traces = Mapping[int, TraceContext]
"""Of calls that have one, by their ids."""


class TraceColumns(NamedTuple):
    """The columns of a batch. See `CallBatch` for the meaning of each."""

    starts: Sequence[int]
    traceparents: Sequence[str]
    tracestates: Sequence[str]
    http_requests: Sequence[bytes] = ()

    def problem(self, count: int) -> tuple[str, str] | None:
        """The first invalid column of a batch with `count` calls, and why."""
        starts = self.starts
        if len(self.traceparents) != len(starts):
            return "traceparents", f"{len(self.traceparents)} of them for {len(starts)} trace_starts"
        if self.tracestates and len(self.tracestates) != len(starts):
            return "tracestates", f"{len(self.tracestates)} of them for {len(starts)} trace_starts"
        if self.http_requests and len(self.http_requests) != len(starts):
            return "http_requests", f"{len(self.http_requests)} of them for {len(starts)} trace_starts"
        last = -1
        for start in starts:
            if not last < start < count:
                return "trace_starts", f"must be ascending places in {count} payloads, got {start}"
            last = start
        for traceparent in self.traceparents:
            if traceparent and not is_traceparent(traceparent):
                return "traceparents", (
                    "must be empty or a W3C traceparent, as 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01, "
                    f"got {traceparent[:64]!r}"
                )
        for tracestate in self.tracestates:
            if not is_tracestate(tracestate):
                return "tracestates", f"must be at most {MAX_TRACESTATE_CHARS} characters of printable ASCII"
        if self.http_requests and max(map(len, self.http_requests)) > MAX_HTTP_BYTES:
            return "http_requests", f"must be at most {MAX_HTTP_BYTES} bytes each"
        return None

    def by_id(self, ids: Sequence[int]) -> dict[int, TraceContext]:
        """The trace contexts of the calls with these ids, which are all of the batch. The columns must be valid."""
        traces: dict[int, TraceContext] = {}
        stops = [*self.starts, len(ids)][1:]
        states = self.tracestates or [""] * len(self.starts)
        requests = self.http_requests or [b""] * len(self.starts)
        columns = zip(self.starts, stops, self.traceparents, states, requests, strict=True)
        for start, stop, traceparent, tracestate, http in columns:
            if traceparent or http:
                traces.update(dict.fromkeys(ids[start:stop], TraceContext(traceparent, tracestate, http)))
        return traces


def columns_of(traces: Sequence[TraceContext | None]) -> TraceColumns:
    """The columns of a batch whose calls have these, most of which may be None."""
    starts: list[int] = []
    contexts: list[TraceContext] = []
    end = 0
    """Of the last stretch."""
    for at in compress(range(len(traces)), traces):
        trace = cast("TraceContext", traces[at])
        if at > end and starts:
            starts.append(end)
            contexts.append(_NONE)
        if at > end or not starts or trace != contexts[-1]:
            starts.append(at)
            contexts.append(trace)
        end = at + 1
    if starts and end < len(traces):
        starts.append(end)
        contexts.append(_NONE)
    states, requests = [each.tracestate for each in contexts], [each.http for each in contexts]
    return TraceColumns(
        starts,
        [each.traceparent for each in contexts],
        states if any(states) else (),
        requests if any(requests) else (),
    )


def is_traceparent(text: str) -> bool:
    """Whether this may be a `traceparent`, of this version of Trace Context or a later one."""
    return len(text) <= MAX_TRACEPARENT_CHARS and _TRACEPARENT.fullmatch(text) is not None


def is_sampled(trace: TraceContext) -> bool:
    """Whether spans of calls with this parent are kept. The context must be valid."""
    return bool(trace.traceparent) and bool(int(trace.traceparent[53:55], 16) & _SAMPLED)


def unsampled(trace: TraceContext) -> TraceContext:
    """The same parent, of calls of which no spans are kept."""
    text = trace.traceparent
    return trace._replace(traceparent=f"{text[:53]}{int(text[53:55], 16) & ~_SAMPLED:02x}{text[55:]}")


def is_tracestate(text: str) -> bool:
    """Whether this may be a `tracestate`."""
    return len(text) <= MAX_TRACESTATE_CHARS and _TRACESTATE.fullmatch(text) is not None


def traces_of_calls(traces: Traces, ids: Sequence[int]) -> Traces | None:
    """Those of these calls alone: a run whose calls take long must not keep those of a whole frame in memory."""
    return {each: traces[each] for each in ids_with(traces, ids)} or None


def ids_with(traces: Traces, ids: Sequence[int]) -> Sequence[int]:
    """Those of these calls that have one: as few steps as there are calls, or traces."""
    if isinstance(ids, range) and len(traces) < len(ids):
        return [each for each in traces if each in ids]
    return [each for each in ids if each in traces]


_NONE: Final = TraceContext("")


REQUEST_ID: Final = "x-request-id"
MAX_CHARS: Final = 128
_ID: Final = re.compile(r"[A-Za-z0-9._:/+=@~-]+")


def is_request_id(text: str) -> bool:
    """Whether it is an acceptable id."""
    return len(text) <= MAX_CHARS and _ID.fullmatch(text) is not None
