"""Results whose payloads were dropped, as their client did not read: replicas keep them, and are asked when it does.

Owner: the outbox of a client's results.
"""

from __future__ import annotations

from collections import deque

from router_service.core.callers import Caller
from router_service.core.commands import DeliverResults
from router_service.core.events import ResultsRequested
from router_service.shell.dispatcher import Dispatcher


class DroppedResults:
    """Those of one client, in order."""

    def __init__(self, caller: Caller, endpoint: str, dispatcher: Dispatcher, fetch_bytes: int) -> None:
        """`fetch_bytes` are asked for at a time."""
        self._caller = caller
        self._endpoint = endpoint
        self._dispatcher = dispatcher
        self._fetch_bytes = fetch_bytes
        self._dropped: deque[tuple[DeliverResults, int]] = deque()
        """Results without their payloads, and how many bytes these had."""
        self.fetching: set[int] = set()
        """Calls whose results were asked for again."""

    def __bool__(self) -> bool:
        """Whether something was dropped, and not asked for."""
        return bool(self._dropped)

    def drop(self, outcome: DeliverResults, size: int) -> None:
        """The call still counts in the window, the bytes of its arguments do not: they are freed."""
        self._caller.released(0, outcome.size)
        outcome.payloads, outcome.size = (), 0
        self._dropped.append((outcome, size))

    def fetch(self) -> None:
        """The client reads again: asks for a frame of what was dropped, one frame at a time."""
        if self.fetching:
            return
        asked: list[DeliverResults] = []
        size = 0
        while self._dropped and size < self._fetch_bytes:
            answered, nbytes = self._dropped.popleft()
            asked.append(answered)
            size += nbytes
            self.fetching.update(answered.ids)
        for answered in asked:
            self._dispatcher.post(ResultsRequested(self._caller, self._endpoint, answered))
