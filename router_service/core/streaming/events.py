"""What happens to calls that take several results, or several requests.

Owner: the caller's stream, and the link to the replica, make them; the scheduler reads them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from router_service.core.callers import Caller
from router_service.core.events import RouterEvent
from router_service.core.replicas.replica import RoutedReplica


@dataclass(slots=True, eq=False)
class StreamedOutcomesLeft(RouterEvent):
    """Outcomes of calls left for the client, and so have their values: they take nothing of the credit any more."""

    caller: Caller
    ids: Iterable[int]
    """Call ids. Those of calls that take one result are ignored."""


@dataclass(slots=True, eq=False)
class RequestsTaken(RouterEvent):
    """Handlers of calls with several requests have begun, or have taken some of them."""

    replica: RoutedReplica
    taken: Sequence[tuple[int, int]]
    """Run ids, and how many of each; 0: it has begun."""
