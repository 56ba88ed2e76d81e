"""Where a replica is in its life: a table, from which the drawing in the documentation is made.

Invariant: a replica never goes back; what is not in the table does not happen.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
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
