"""Where a replica is in its life: a table, from which the drawing in the documentation is made.

Invariant: a replica never goes back; what is not in the table does not happen.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from math import inf
from types import MappingProxyType


class State(Enum):
    """Where a replica is. The values are those of `slotmesh.v1.ReplicaState`."""

    STARTING = 1
    """The handler is being constructed."""
    READY = 2
    """It takes calls."""
    DRAINING = 3
    """It takes no new calls and finishes what runs."""
    STOPPED = 4
    """Nothing runs any more."""
    FAILED = 5
    """The handler could not be constructed."""


class LifecycleEvent(Enum):
    """What moves a replica on."""

    CONSTRUCTED = "constructed"
    CONSTRUCTION_FAILED = "construction failed"
    STOP_ASKED = "stop asked"
    """By a signal, by the controller, or because the launcher has ended."""
    EMPTIED = "emptied"
    """What ran has ended, or its time was over."""


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
    """Where the event leads.

    Raises:
        IllegalTransition: the table has no such row.
    """
    try:
        return TRANSITIONS[state][event]
    except KeyError:
        raise IllegalTransition(f"{event.value} cannot happen to a replica that is {state.name}") from None


# The lease of a replica that fences itself: how long it may run calls without an acknowledgement of the controller.
#
# Purpose: a controller that has acknowledged no report for `bound_s` can rely on the end of the replica's process. So
# it
# may give the replica's ordering keys to another one without a word from it.
# Invariants: time counts from the sending of the newest report that was acknowledged, never from the arrival of the
# acknowledgement; a fence that has closed stays closed: the replica drains and ends.
# Owner: `shell.fencing`, on the replica's event loop.


@dataclass(frozen=True, slots=True, kw_only=True)
class FenceSettings:
    """How long a replica goes on without an acknowledgement."""

    after_s: float
    """Until it starts no more calls."""
    grace_s: float
    """From then on, until its process has ended, whatever runs."""

    @property
    def bound_s(self) -> float:
        """What the replica states in its hello: its process ends so long after the sending of the newest report."""
        return self.after_s + self.grace_s


class Fence:
    """The lease of one replica."""

    def __init__(self, settings: FenceSettings) -> None:
        self.settings = settings
        self._since = inf
        """When the newest acknowledged report was sent, monotonic seconds; infinite before the replica is ready."""

    @property
    def has_begun(self) -> bool:
        """The replica takes calls, so its lease counts."""
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
        """The replica is about to report that it is ready: until then it has no calls, and no lease."""
        self._since = now

    def acknowledged(self, stamp: float, now: float) -> bool:
        """The controller has read the report that was sent at `stamp`. Returns whether that prolongs the lease."""
        if not self.has_begun or self.is_closed(now) or min(stamp, now) <= self._since:
            return False
        self._since = min(stamp, now)
        return True

    def is_closed(self, now: float) -> bool:
        """Whether nothing may start any more. It stays so, since no acknowledgement counts from then on."""
        return now >= self.closes_at
