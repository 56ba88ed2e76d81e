"""The replica's states as a table, from which the documentation's diagram is made; and the lease of a fenced replica.

Invariants: a replica never returns to an earlier state; a transition that is not in the table is illegal. A fence that
has closed stays closed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from math import inf
from types import MappingProxyType


class State(Enum):
    """The state of a replica. The values are those of `slotmesh.v1.ReplicaState`."""

    STARTING = 1
    """The handler is being constructed."""
    READY = 2
    """The replica accepts calls."""
    DRAINING = 3
    """The replica accepts no new calls and finishes the running ones."""
    STOPPED = 4
    """No call runs any more."""
    FAILED = 5
    """The handler could not be constructed."""


class LifecycleEvent(Enum):
    """What changes a replica's state."""

    CONSTRUCTED = "constructed"
    CONSTRUCTION_FAILED = "construction failed"
    STOP_ASKED = "stop asked"
    """By a signal, by the controller, or because the launcher has ended."""
    EMPTIED = "emptied"
    """The running calls have ended, or the grace was over."""


TRANSITIONS: Mapping[State, Mapping[LifecycleEvent, State]] = MappingProxyType(
    {
        State.STARTING: MappingProxyType(
            {
                LifecycleEvent.CONSTRUCTED: State.READY,
                LifecycleEvent.CONSTRUCTION_FAILED: State.FAILED,
                LifecycleEvent.STOP_ASKED: State.STOPPED,
            }
        ),
        State.READY: MappingProxyType({LifecycleEvent.STOP_ASKED: State.DRAINING}),
        State.DRAINING: MappingProxyType(
            {LifecycleEvent.STOP_ASKED: State.DRAINING, LifecycleEvent.EMPTIED: State.STOPPED}
        ),
        State.STOPPED: MappingProxyType({LifecycleEvent.STOP_ASKED: State.STOPPED}),
        State.FAILED: MappingProxyType({LifecycleEvent.STOP_ASKED: State.FAILED}),
    }
)
"""State -> event -> next state."""


class IllegalTransition(Exception):
    """An event that cannot happen in this state: a defect."""


def next_state(state: State, event: LifecycleEvent) -> State:
    """Returns the state after the event.

    Raises:
        IllegalTransition: the table has no such row.
    """
    try:
        return TRANSITIONS[state][event]
    except KeyError:
        raise IllegalTransition(f"{event.value} cannot happen to a replica that is {state.name}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class FenceSettings:
    """How long a replica continues without an acknowledgement."""

    after_s: float
    """Time until it starts no more calls."""
    grace_s: float
    """Time from then until its process has ended, even if calls still run."""

    @property
    def bound_s(self) -> float:
        """The time that the hello states: the process ends this long after the newest acknowledged report was sent."""
        return self.after_s + self.grace_s


class Fence:
    """The lease of one replica: how long it may run calls without an acknowledgement of the controller.

    A controller that has acknowledged no report for `bound_s` can rely on the end of the replica's process, and may
    move its ordering keys without contact to it. Time counts from the sending of the newest acknowledged report, never
    from the arrival of the acknowledgement. Owned by `Fencing`, on the replica's event loop.
    """

    def __init__(self, settings: FenceSettings) -> None:
        self.settings = settings
        self._since = inf
        """When the newest acknowledged report was sent, monotonic seconds; infinite before the replica is ready."""

    @property
    def has_begun(self) -> bool:
        """Whether the replica accepts calls, so that its lease counts."""
        return self._since < inf

    @property
    def closes_at(self) -> float:
        """When no further call may start."""
        return self._since + self.settings.after_s

    @property
    def ends_at(self) -> float:
        """When the process must have ended."""
        return self._since + self.settings.bound_s

    def begin(self, now: float) -> None:
        """Starts the lease. Called before the replica reports that it is ready; until then it has no calls."""
        self._since = now

    def acknowledged(self, stamp: float, now: float) -> bool:
        """Handles the acknowledgement of the report that was sent at `stamp`. Returns whether it prolongs the lease."""
        if not self.has_begun or self.is_closed(now) or min(stamp, now) <= self._since:
            return False
        self._since = min(stamp, now)
        return True

    def is_closed(self, now: float) -> bool:
        """Whether no call may start any more. Once closed, no acknowledgement reopens the fence."""
        return now >= self.closes_at
