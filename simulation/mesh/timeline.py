"""Virtual time: what is to happen, in order; nothing ever waits.

Invariants: time goes from one entry to the next, never back; entries of the same moment happen in the order in which
they were made; all chance is drawn from generators that the seed gives.
"""

from __future__ import annotations

import itertools
from asyncio import events
from collections.abc import Callable
from heapq import heappop, heappush
from random import Random
from typing import Any


class Stuck(Exception):
    """So much happens that time does not go on: somebody turns in circles."""


class Timeline:
    """One heap for all nodes, the network and the faults."""

    def __init__(self, seed: int, *, max_steps: int = 4_000_000) -> None:
        """More than `max_steps` entries in one `run` raise `Stuck`."""
        self.now = 0.0
        self.seed = seed
        self.steps = 0
        self.is_over = False
        """Set where nothing more is of interest."""
        self.numbers = itertools.count(1)
        """For what needs a number of its own in this run."""
        self._until = 0.0
        self._max_steps = max_steps
        self._heap: list[tuple[float, int, Callable[[Any], object], Any]] = []
        self._sequence = 0

    def chance(self, name: str) -> Random:
        """A generator of its own for each name: who is left out of a scenario changes no one else's chance."""
        return Random(f"{self.seed}/{name}")

    def at(self, when: float, happen: Callable[[Any], object], what: Any = None) -> None:
        """`happen(what)` is called at `when`, or now if that has passed."""
        self._sequence += 1
        if when < self.now:  # noqa: PLR1730 - a call of `max` would be a third of what this takes
            when = self.now
        heappush(self._heap, (when, self._sequence, happen, what))

    def skip_to(self, when: float) -> bool:
        """Time goes on to `when`, which has not passed, if nothing else is to happen before, nor then.

        Whoever has just happened, and would be next, goes on in place of being called again.
        """
        heap = self._heap
        if (heap and heap[0][0] <= when) or when > self._until or self.is_over or self.steps >= self._max_steps:
            return False
        self.now = when
        self.steps += 1
        return True

    def run(self, until: float) -> None:
        """Goes on until then, or until it is over.

        Raises:
            Stuck: that takes too many steps.
        """
        heap, self._until = self._heap, until
        try:
            while heap and heap[0][0] <= until and not self.is_over:
                self.now, _, happen, what = heappop(heap)
                self.steps += 1
                if self.steps > self._max_steps:
                    raise Stuck(f"{self.steps} steps until {self.now:.3f} s: {happen}, {what}")
                happen(what)
        finally:
            events._set_running_loop(None)  # whoever had the last turn
        if not self.is_over:
            self.now = max(self.now, until)
