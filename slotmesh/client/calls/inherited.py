"""What a call takes over from the call in which it is made: its trace, and no more time than that has left.

Invariants: a call that is made in none takes over nothing; nor does one whose place cannot tell which of several calls
is meant. In a batch method the calls of the batch count together: the one that has the most time, and no trace unless
there is one call.
Owner: methods of views with the option `inherits`; asked where a call is made, in whichever thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import floor, frexp, ldexp

from slotmesh.client.calls.traced_payload import current_trace
from slotmesh.handlers.context import CallContext, asking, current_place
from slotmesh.wire.trace_context import TraceContext

_STEPS: int = 64
"""Different times left between one and its double: calls that are made together share their options, and so a batch."""
_SHORTEST_S: float = 0.001
"""Less is not rounded."""


def time_left_s() -> float | None:
    """What the call that is executed here has left, rounded down by 1.6 % at most; None: no limit, or no call."""
    each = [call.time_left() for call in _calls()]
    known = [left_s for left_s in each if left_s is not None]
    if not known or len(known) < len(each):
        return None
    return rounded_down(max(known))


def inherited_trace() -> TraceContext | None:
    """The span that is current here, else the one of the call that is executed here; None where there is none."""
    if (current := current_trace()) is not None:
        return current
    calls = _calls()
    if len(calls) != 1 or not calls[0].traceparent:
        return None
    return TraceContext(calls[0].traceparent, calls[0].tracestate)


def rounded_down(time_s: float) -> float:
    """The time, or a bit less: one of few values."""
    if time_s < _SHORTEST_S:
        return time_s
    step = ldexp(1.0, frexp(time_s)[1] - 1) / _STEPS
    return floor(time_s / step) * step


def _calls() -> Sequence[CallContext]:
    """Those that are executed here."""
    asking.is_known = True
    place = current_place.get()
    if place is None:
        return ()
    try:
        return place.contexts()
    except RuntimeError:  # it cannot be told which of several
        return ()
