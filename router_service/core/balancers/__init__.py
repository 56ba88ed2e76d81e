"""Who gets the next unkeyed calls: one policy a file, each one non-blocking method over the replicas' loads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from router_service.core.replicas import Replica


class Balancer(Protocol):
    """Picks among the replicas of one backend. None of them looks at more than a few replicas."""

    def changed(self, replica: Replica) -> None:
        """The replica's load, capacity or link changed; it may be new, or gone (`free` is 0)."""

    def pick(self) -> Replica | None:
        """The replica for the next calls: one with `free > 0`, or None. Changes nothing but the order of turns."""
