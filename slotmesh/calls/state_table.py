"""The life of a thing as a table: states x events, and the state that follows; and its diagram for the documentation.

Purpose: a core changes a state only by its table, so that the table is the whole truth about the states.
Invariants: an event that the table does not list in a state cannot happen there: it is a defect of this program. The
core then changes nothing and reports the defect, and its shell logs and counts it: one wrong event ends no process.
Owner: whatever has the state. A table is immutable, and shared by all things of its kind.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import Any, Generic, TypeVar


class StateName(Enum):
    """A state or an event. Hashed by identity, because each run and each request takes several steps.

    Python 3.11 takes 0.2 µs to read a member from its class, so code that runs for each call binds members and rows
    (`StateTable.on`) to names of its module.
    """

    __hash__ = object.__hash__


StateT = TypeVar("StateT", bound=StateName)
EventT = TypeVar("EventT", bound=StateName)


class StateTable(Generic[StateT, EventT]):
    """One table. Its first row has the first state."""

    __slots__ = ("of", "steps")

    def __init__(self, of: str, steps: Mapping[tuple[StateT, EventT], StateT]) -> None:
        """`of`: what has the states, for messages."""
        self.of = of
        self.steps = MappingProxyType(dict(steps))

    def on(self, event: EventT) -> dict[StateT, StateT]:
        """Returns the states in which the event can happen, each with the state that follows: a row for quick use."""
        return {state: after for (state, each), after in self.steps.items() if each is event}

    def impossible(self, state: StateT, event: EventT) -> str:
        """Describes the defect of an event that the table does not list in this state."""
        return f"{event.value!r} cannot happen to {self.of} in state {state.value!r}"

    def diagram(self) -> str:
        """Returns the Mermaid diagram of the table."""
        return diagram(self.steps)


def diagram(steps: Mapping[Any, StateName]) -> str:
    """Returns a table as a Mermaid state diagram: one arrow between two states, with all events that lead along it."""
    arrows: dict[tuple[str, str], list[str]] = {}
    for (state, event), after in steps.items():
        if state is not after:
            arrows.setdefault((state.value, after.value), []).append(event.value)
    first = next(iter(steps))[0].value
    lines = [f"    {state} --> {after}: {' / '.join(events)}" for (state, after), events in arrows.items()]
    return "\n".join(["stateDiagram-v2", f"    [*] --> {first}", *lines])
