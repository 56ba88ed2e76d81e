"""How many requests are answered at once, and by whom they were made. Pure.

Invariants: as `FairBound` has them; WebSockets, and answers whose values come one by one, count until they end.
Owner: the app; the front and the sockets take and give.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, TypeAlias

from ingress_service.core.problems import RequestRefusal, refusal
from slotmesh.errors import Reason
from slotmesh.security.fair_bound import FairBound, Over

Requester: TypeAlias = int | str
"""Who has made a request: the number of the caller whose token a router has taken, or else the address it is from."""
BUSY_RETRY_S: Final = 1.0
FLOOR: Final = 64
"""A requester with no more requests than these finds the reserve."""


class RequestBound:
    """Of one ingress."""

    def __init__(self, most: int) -> None:
        self._bound: FairBound[Requester] = FairBound.within(most, FLOOR)

    @contextmanager
    def taken(self, who: Requester) -> Iterator[None]:
        """One more, for as long as the block lasts. Raises RequestRefusal."""
        if (over := self._bound.over(who, 1)) is not None:
            raise _refused(over)
        self._bound.take(who, 1)
        try:
            yield
        finally:
            self._bound.give(who, 1)


def _refused(over: Over) -> RequestRefusal:
    whose = "of this caller or address " if over is Over.SHARE else ""
    text = f"too many requests {whose}are in flight (--max-requests)"
    return refusal(503, text, Reason.QUOTA_EXCEEDED, retry_delay_s=BUSY_RETRY_S)
