"""The outcome of a `map`: one list and one future for any number of calls.

Invariants: the future is done only when every call has its outcome (or when it was cancelled). Of several failures the
first by input order is raised, whichever came first, and says which items failed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from slotmesh.errors import SlotmeshError, items_failed


class Gather:
    """Collects results at their places."""

    __slots__ = ("_failed", "_failed_at", "_failure", "_keeps_failures", "_left", "_results", "future")

    def __init__(self, count: int, future: asyncio.Future[list[Any]], *, keeps_failures: bool) -> None:
        """`keeps_failures`: exceptions are entries of the list, and nothing is raised."""
        self.future = future
        self._keeps_failures = keeps_failures
        self._results: list[Any] = [None] * count
        self._left = count
        self._failure: Exception | None = None
        self._failed_at = count
        self._failed: list[tuple[int, int]] = []
        """Items that failed, as place and number of neighbours, in the order of their outcomes."""

    def done(self) -> bool:
        """Whether the future is done or cancelled."""
        return self.future.done()

    def put(self, at: int, results: list[Any]) -> None:
        """Results of neighbouring calls."""
        self._results[at : at + len(results)] = results
        self._settled(len(results))

    def fail(self, at: int, failures: Sequence[Exception]) -> None:
        """Failures of neighbouring calls."""
        if self._keeps_failures:
            self._results[at : at + len(failures)] = failures
        else:
            if at < self._failed_at:
                self._failed_at, self._failure = at, failures[0]
            self._failed.append((at, len(failures)))
        self._settled(len(failures))

    def _settled(self, count: int) -> None:
        self._left -= count
        if self._left or self.future.done():
            return
        if self._failure is not None:
            self._tell_which(self._failure)
            self.future.set_exception(self._failure)
        else:
            self.future.set_result(self._results)
        self._results = []

    def _tell_which(self, failure: Exception) -> None:
        places = tuple(place for at, many in sorted(self._failed) for place in range(at, at + many))
        if isinstance(failure, SlotmeshError):
            failure.of_map(places, len(self._results))
        else:
            failure.add_note(items_failed(places, len(self._results)))
