"""The outcome of a `map`: one list and one future for any number of calls.

Invariants: the future is done only when every call has its outcome (or when it was cancelled). Of several failures the
first by input order is raised, whichever came first, and says which items failed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from math import inf
from typing import Any

from slotmesh.errors import SlotmeshError, items_failed


class Gather:
    """Collects results at their places."""

    __slots__ = ("_failed", "_failed_at", "_failure", "_keeps_failures", "_left", "_results", "future")

    def __init__(
        self, count: int, future: asyncio.Future[list[Any]], *, keeps_failures: bool, is_open: bool = False
    ) -> None:
        """`keeps_failures`: exceptions are entries of the list, and nothing is raised. `is_open`: more calls come."""
        self.future = future
        self._keeps_failures = keeps_failures
        self._results: list[Any] = [None] * count
        self._left = count + is_open
        """Calls without an outcome; one more while it is open."""
        self._failure: Exception | None = None
        self._failed_at: float = inf
        self._failed: list[tuple[int, int]] = []
        """Items that failed, as place and number of neighbours, in the order of their outcomes."""

    def done(self) -> bool:
        """Whether the future is done or cancelled."""
        return self.future.done()

    def extend(self, count: int) -> int:
        """More calls are made. Returns the place of the first one. Only while it is open."""
        at = len(self._results)
        self._results += [None] * count
        self._left += count
        return at

    def close(self, error: Exception | None = None) -> None:
        """No more calls come; because of the error, if there is one, which is raised after the failure of a call."""
        if error is not None and self._failure is None:
            self._failure, self._failed = error, []
        self._settled(1)

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
        if not self._failed:
            return
        places = tuple(place for at, many in sorted(self._failed) for place in range(at, at + many))
        if isinstance(failure, SlotmeshError):
            failure.of_map(places, len(self._results))
        else:
            failure.add_note(items_failed(places, len(self._results)))
