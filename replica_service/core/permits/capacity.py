"""The load of the replica, as it is reported to one router."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PermitCapacity:
    """Counts calls. What the router may send is `max_ongoing + prefetch - others` less what it has sent."""

    max_ongoing: int
    prefetch: int
    keyed_window: int
    draining: bool
    others: int
    """Permits in use and unkeyed calls that wait, without the unkeyed calls of this router that are not in slots."""
