"""The load of the replica, as it is reported to one router."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PermitCapacity:
    """Counts calls. What the router may send is `max_ongoing + prefetch - others` less what it has sent."""

    ongoing: int
    """Permits in use: unkeyed calls that run or gather for a batch, lanes that have their turn, slots."""
    max_ongoing: int
    waiting: int
    """Unkeyed calls behind the running ones."""
    prefetch: int
    keyed_window: int
    draining: bool
    others: int
    """The part of `ongoing` and `waiting` that is not unkeyed calls of this router, or is in slots."""
