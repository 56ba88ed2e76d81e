"""Virtual time: what happens next.

Invariants: time never goes back; events of the same moment happen in the order in which they were planned, so that
links of constant delay are first in, first out.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

Action = Callable[[Any], None]


class Kernel:
    """A heap of events."""

    def __init__(self) -> None:
        self.now = 0.0
        self.events = 0
        """Events that have happened."""
        self._heap: list[tuple[float, int, Action, Any]] = []
        self._planned = 0

    def at(self, when: float, action: Action, argument: Any) -> None:
        """Plans `action(argument)`; a moment that has passed means now."""
        self._planned += 1
        heappush(self._heap, (when, self._planned, action, argument))

    def run(self, is_over: Callable[[], bool]) -> None:
        """Lets events happen until it is over, or until nothing is planned."""
        heap = self._heap
        while heap and not is_over():
            when, _, action, argument = heappop(heap)
            self.now = max(self.now, when)
            self.events += 1
            action(argument)
