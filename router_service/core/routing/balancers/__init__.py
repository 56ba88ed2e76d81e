"""Who gets the next unkeyed calls: one policy a file, each one non-blocking method over the replicas' loads.

A backend that names none has `least_loaded` (`slotmesh/spec/model.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar, runtime_checkable

if TYPE_CHECKING:
    from router_service.core.replicas.capacity import Capacity


class Candidate(Protocol):
    """A replica, as balancers see it: they read, and change nothing. Compared by identity."""

    @property
    def capacity(self) -> Capacity:
        """Its own report."""

    @property
    def taking(self) -> bool:
        """It takes calls, as far as it has room."""

    @property
    def own(self) -> int:
        """This router's unkeyed calls and reservations there, unanswered."""

    @property
    def free(self) -> int:
        """Unkeyed calls that it can take now."""

    @property
    def load(self) -> float:
        """Share of its permits in use; 1.0 is full."""


CandidateT = TypeVar("CandidateT", bound=Candidate)


class Balancer(Protocol[CandidateT]):
    """Picks among the replicas of one backend. None of them looks at more than a few replicas."""

    def changed(self, replica: CandidateT) -> None:
        """The replica's load, capacity or link changed; it may be new, or gone (`free` is 0)."""

    def pick(self) -> CandidateT | None:
        """The replica for the next calls: one with `free > 0`, or None. Changes nothing but the order of turns."""


@runtime_checkable
class RoutingHooks(Protocol):
    """A balancer that wants to hear what became of what was placed. Each `routed` has one of the others, later.

    Calls and reservations without an ordering key. One that comes into force hears the end of what others placed.
    """

    def routed(self, replica: Candidate, count: int) -> None:
        """`count` calls, or a reservation, were placed at the replica."""

    def completed(self, replica: Candidate, count: int, latency_s: float) -> None:
        """It has answered calls, `latency_s` after they were placed, or dispatched into their slot."""

    def abandoned(self, replica: Candidate, count: int) -> None:
        """It never ran them, or nobody will know: refused, taken back, lost; a slot released, or its lease over."""
