"""What a client with direct lanes moves: calls, and places at replicas in which they run.

Purpose: the values that the plan decides about and its owner carries out.
Invariants: a call is in the queue, at one place, or over; a place runs one call at a time.
Owner: the plan; its owner reads them.
"""

from __future__ import annotations

from enum import Enum, auto
from math import inf
from typing import Any, NamedTuple, TypeAlias

from slotmesh.errors import Failure


class PlacedCall:
    """One call. Compared by identity."""

    __slots__ = (
        "__weakref__",
        "alarm",
        "attempts",
        "body",
        "deadline",
        "is_idempotent",
        "is_over",
        "may_have_run",
        "place",
    )

    def __init__(self, body: Any, deadline: float = inf, *, is_idempotent: bool = False) -> None:
        self.body = body
        """The payload and its future. Opaque to the plan."""
        self.deadline = deadline
        """Monotonic seconds, exclusive: from then on its caller does not wait for it."""
        self.is_idempotent = is_idempotent
        """It may be sent again where its outcome is unknown."""
        self.is_over = False
        """It has its outcome, or was cancelled by its caller."""
        self.may_have_run = False
        """It was lost at a replica, and is to be sent again."""
        self.attempts = 0
        """How many times it was sent."""
        self.place: DirectPlace | None = None
        """Where it was sent to, and has no answer from."""
        self.alarm = inf
        """When the heap reports it as overdue; infinite if it is not watched."""


class PlaceState(Enum):
    """What a place is good for."""

    WANTED = auto()
    """A slot is being reserved, and handed over to a stream."""
    IDLE = auto()
    BUSY = auto()
    """A call was sent to it, and has no answer."""
    GONE = auto()


class DirectPlace:
    """A slot that the client holds, or is about to. Compared by identity."""

    __slots__ = ("call", "idle_since", "is_leaving", "slot", "state")

    def __init__(self) -> None:
        self.state = PlaceState.WANTED
        self.call: PlacedCall | None = None
        """The one that was sent to it, be it over for its caller."""
        self.idle_since = inf
        """Monotonic seconds; infinite where it is not idle."""
        self.is_leaving = False
        """Its replica drains: it takes no further call."""
        self.slot: Any = None
        """The slot, as a stream has it; None until one was reserved. Its owner's, opaque to the plan."""


class Want(NamedTuple):
    """Reserve a slot for the place, and hand it over to a stream."""

    place: DirectPlace


class SendCall(NamedTuple):
    """Send the call to its place."""

    call: PlacedCall
    place: DirectPlace
    waited: bool
    """It was not sent when it was made."""


class TakeCallBack(NamedTuple):
    """Cancel the call at the place. The replica answers it all the same."""

    place: DirectPlace


class GiveBack(NamedTuple):
    """Give the slot of the place back; where none is there yet, whatever comes of it."""

    place: DirectPlace


class Finish(NamedTuple):
    """The caller has the outcome: a payload, or a failure."""

    call: PlacedCall
    outcome: bytes | Failure


DirectCommand: TypeAlias = Want | SendCall | TakeCallBack | GiveBack | Finish
