"""Whether replicas of a backend that has no ready one are on their way.

Owner: the controller says it in routing tables, routers decide by it whether calls wait.
"""

from __future__ import annotations

from enum import Enum


class Prospect(Enum):
    """What becomes of a backend without a ready replica. The values are those of `slotmesh.v1.Prospect`."""

    UNKNOWN = 0
    """The controller does not say: some may come."""
    COMING = 1
    """Replicas are starting, or will be in a moment."""
    FAILING = 2
    """The newest ones that were started have ended before they were ready, and so may the next."""
    NONE = 3
    """None should run."""
