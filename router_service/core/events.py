"""What happens to the router's calls and callers: the events that no other room has.

Purpose: an event is the only way into the scheduler (`RouterScheduler.step`). Rooms have those of their own in files of
this name: `replicas/`, `routing/`, `sessions/`, `slots/`, `streaming/`, `uploads/`.
Invariants: events carry no behaviour, and are made once a frame, never once a call. Each class has one handler, which
`scheduler.py` names.
Owner: the shell makes them, the scheduler reads them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from router_service.core.callers import Caller
from router_service.core.calls import Batch, KeyedBatch
from router_service.core.commands import DeliverResults
from slotmesh.wire.trace_context import Traces


class RouterEvent:
    """Base of the events of the router's core."""

    __slots__ = ()


@dataclass(slots=True, eq=False)
class CallsSubmitted(RouterEvent):
    """Calls came that passed the edge's checks."""

    caller: Caller
    endpoint: str
    batches: Iterable[Batch | KeyedBatch]
    traces: Traces | None = None
    """Of those of the calls that have a trace context; None where none has."""


@dataclass(slots=True, eq=False)
class CallFailedAtEdge(RouterEvent):
    """A call of a lane that stops at failures failed before it was submitted: later calls of its generation fail."""

    caller: Caller
    ordering_key: str
    stop_generation: int
    call_id: int


@dataclass(slots=True, eq=False)
class CallsCancelled(RouterEvent):
    """The caller took calls back. Those that have ended stay so."""

    caller: Caller
    ranges: Iterable[tuple[int, int]]
    """Call ids from first to last, both included."""


@dataclass(slots=True, eq=False)
class CallerLeft(RouterEvent):
    """A caller without a session has disconnected: its calls without an outcome are CANCELLED."""

    caller: Caller
    is_overdue: bool = False
    """The deadline of its rpc has passed: its calls were not answered in time, and nobody has taken them back."""


@dataclass(slots=True, eq=False)
class ResultsRequested(RouterEvent):
    """The caller reads results whose payloads the router has dropped: their replica is asked for them again."""

    caller: Caller
    endpoint: str
    answered: DeliverResults


@dataclass(slots=True, eq=False)
class RouterTimePassed(RouterEvent):
    """The moment that `RouterScheduler.next_deadline` named has come: what is overdue ends."""
