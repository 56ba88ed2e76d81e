"""Where calls come from, as far as only their handler may want to know it.

Invariants: one object for a whole batch, which all its runs share, whatever they are cut into: so calls are told apart
by run id.
Owner: made at the edge, read by executors.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from replica_service.core.answer_heads import AnswerHeads
from slotmesh.wire.trace_context import TraceContext, Traces, is_sampled


class Arrival(NamedTuple):
    """What a router says of the calls of a batch, beside their options."""

    waited_s: float | None
    """Seconds from the arrival of the first of them at the router to this replica; None where it does not say."""
    is_shadow: bool
    """They are sampled copies, whose results nobody has."""
    first: int
    """Run id of the first of the calls."""
    shard_keys: Sequence[str]
    """One for each of them, or a single one for all; empty where none has one."""
    traces: Traces
    """Trace contexts, by run id."""
    heads: AnswerHeads | None = None
    """What handlers set for their answers; None where they cannot."""

    def shard_key(self, run_id: int) -> str:
        """That of one call; empty where it has none."""
        keys = self.shard_keys
        return keys[run_id - self.first if len(keys) > 1 else 0] if keys else ""

    def trace(self, run_id: int) -> TraceContext:
        """That of one call; empty where it has none."""
        return self.traces.get(run_id, _NO_TRACE)

    def sampled(self, most_alike: int) -> dict[int, TraceContext]:
        """Those of calls whose spans are kept, by run id, ascending: of each trace context so many calls at most."""
        if self.is_shadow:
            return {}
        alike: Counter[str] = Counter()
        found: dict[int, TraceContext] = {}
        for run_id, trace in self.traces.items():
            if is_sampled(trace):
                alike[trace.traceparent] += 1
                if alike[trace.traceparent] <= most_alike:
                    found[run_id] = trace
        return found


_NO_TRACE = TraceContext("")


class RerunOrigin(NamedTuple):
    """Where calls without a session ran first that run once more."""

    stream_id: str
    run_ids: Sequence[int]
    """On it, parallel to the payloads."""
    attempt: int
    """At least 1."""
