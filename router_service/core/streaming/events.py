"""What happens to calls that take several results.

Owner: the caller's stream makes them, the scheduler reads them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from router_service.core.callers import Caller
from router_service.core.events import RouterEvent


@dataclass(slots=True, eq=False)
class StreamedOutcomesLeft(RouterEvent):
    """Outcomes of calls left for the client, and so have their values: they take nothing of the credit any more."""

    caller: Caller
    ids: Iterable[int]
    """Call ids. Those of calls that take one result are ignored."""
