"""Calls that left together, as one batch of a frame, and the combined outcome of a map.

Columnar: lists of payloads and of sinks, no object for each call. Pure: a sink is an asyncio future, of which only
`done()` is called here.
Owner: the endpoint's `PendingCalls`, from when they leave until each has its outcome.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from math import inf
from operator import methodcaller
from typing import Any, Final

from slotmesh.client.calls.call_spec import CallSpec
from slotmesh.errors import SlotmeshError, items_failed
from slotmesh.v1 import call_pb2, router_service_pb2


class Gather:
    """The outcome of a `map`: one list and one future for any number of calls.

    Invariants: the future is done only when every call has its outcome (or when it was cancelled). Of several failures,
    the first by input order is raised, not by time, and lists the items that failed.
    """

    __slots__ = ("_failed", "_failed_at", "_failure", "_keeps_failures", "_left", "_results", "future")

    def __init__(
        self, count: int, future: asyncio.Future[list[Any]], *, keeps_failures: bool, is_open: bool = False
    ) -> None:
        """`keeps_failures`: exceptions are entries of the list, nothing is raised. `is_open`: calls may be added."""
        self.future = future
        self._keeps_failures = keeps_failures
        self._results: list[Any] = [None] * count
        self._left = count + is_open
        """Calls without an outcome; one more while it is open."""
        self._failure: Exception | None = None
        self._failed_at: float = inf
        self._failed: list[tuple[int, int]] = []
        """Items that failed, as place and number of consecutive ones, in the order of their outcomes."""

    def done(self) -> bool:
        """Whether the future is done or cancelled."""
        return self.future.done()

    def extend(self, count: int) -> int:
        """Adds calls. Returns the place of the first one. Only while it is open."""
        at = len(self._results)
        self._results += [None] * count
        self._left += count
        return at

    def close(self, error: Exception | None = None) -> None:
        """No more calls follow; `error`: the reason, if any, raised after the failure of a call."""
        if error is not None and self._failure is None:
            self._failure, self._failed = error, []
        self._settled(1)

    def put(self, at: int, results: list[Any]) -> None:
        """Sets results of consecutive calls."""
        self._results[at : at + len(results)] = results
        self._settled(len(results))

    def fail(self, at: int, failures: Sequence[Exception]) -> None:
        """Sets failures of consecutive calls."""
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


_is_done = methodcaller("done")


class _Nobody:
    """Replaces the future of a call that was cancelled: its outcome is dropped."""

    __slots__ = ()

    @staticmethod
    def done() -> bool:
        return True


_NOBODY: Final = _Nobody()


class SentPart:
    """Calls that left together, as one batch of a frame. Kept until each has its outcome.

    Keeps their payloads, as a session sends again what its router has not answered.
    """

    __slots__ = (
        "_taken_back",
        "answered",
        "count",
        "first",
        "gather",
        "left",
        "made_at",
        "nbytes",
        "offset",
        "payloads",
        "roster",
        "sent_at",
        "sinks",
        "spec",
        "specs",
    )

    def __init__(
        self,
        spec: CallSpec,
        payloads: list[bytes],
        nbytes: int,
        sinks: list[Any],
        gather: Gather | None = None,
        offset: int = 0,
        specs: list[CallSpec] | None = None,
    ) -> None:
        self.spec = spec
        """Of the first call, and of all if there are no `specs`."""
        self.specs = specs
        """One for each call, if calls of several lanes left together. They differ only in their lane."""
        self.payloads = payloads
        """Of each call; empty if it has its outcome, unless all have."""
        self.nbytes = nbytes
        """Payload bytes of those without an outcome."""
        self.sinks = sinks
        """One for each call; empty where `gather` takes all outcomes."""
        self.gather = gather
        self.offset = offset
        """Place of the first call in `gather`."""
        self.count = len(payloads)
        """Calls in all."""
        self.left = self.count
        """Calls without an outcome."""
        self.first = 0
        """Set when it leaves; the others follow one by one. 0: never left."""
        self.made_at: float | None = None
        """When its calls were made, if that was a while before they left; else None."""
        self.sent_at = 0.0
        """When it left for the first time, seconds of the event loop's clock."""
        self.roster: router_service_pb2.RosterVersion | None = None
        """The newest version that was acknowledged when it left."""
        self.answered: bytearray | None = None
        """1 for each call that has its outcome; None while none has."""
        self._taken_back = False

    @property
    def since(self) -> float:
        """When its timeout starts, seconds of the event loop's clock. Only once it has left."""
        return self.sent_at if self.made_at is None else self.made_at

    @property
    def wire(self) -> call_pb2.CallOptions:
        """The options that all of its calls share; without ordering key if that differs."""
        group = self.spec.group
        return self.spec.wire if self.specs is None or group is None else group.wire

    def settled(self, at: int, count: int) -> None:
        """Reports outcomes of consecutive calls to their queues. Not for calls that never were in an outbox."""
        if self.specs is None:
            self.spec.queue.settled(count)
            return
        for spec in self.specs[at : at + count]:
            spec.queue.settled(1)

    def is_after_failure(self, place: int) -> bool:
        """Whether the call's lane stops at failures, and a call before it has failed."""
        spec = self.spec if self.specs is None else self.specs[place]
        stop = spec.queue.stop
        return stop is not None and stop.is_after_failure(spec.stop_generation, self.first + place)

    def is_wanted(self, place: int) -> bool:
        """Whether the call has no outcome, and is not cancelled."""
        if not self.left or (self.answered is not None and self.answered[place]):
            return False
        waiting: Any = self.gather or self.sinks[place]
        return not waiting.done()

    @property
    def has_wanted(self) -> bool:
        """Whether a caller waits for one of its calls."""
        if self.gather is not None:
            return self.left > 0 and not self.gather.done()
        return any(map(self.is_wanted, range(self.count)))

    def settled_places(self, places: list[int]) -> None:
        """As `settled`, for calls at these places."""
        if self.specs is None:
            self.spec.queue.settled(len(places))
            return
        for at in places:
            self.specs[at].queue.settled(1)

    def open_spans(self, start: int = 0) -> Iterator[tuple[int, int]]:
        """Consecutive calls without an outcome, from the place `start` on: the place of the first, and their number."""
        answered, count = self.answered, self.count
        if not self.left:
            return  # those that were answered last are not marked
        if answered is None:
            if start < count:
                yield start, count - start
            return
        at = answered.find(0, start)
        while at >= 0:
            end = answered.find(1, at)
            yield at, (count if end < 0 else end) - at
            at = -1 if end < 0 else answered.find(0, end)

    def forsake(self) -> None:
        """Drops all calls, without cancels to the router."""
        self.sinks, self.gather = [_NOBODY] * self.count, None

    def unwanted(self) -> list[int]:
        """Places of the calls that have no outcome, and were cancelled."""
        places = [place for at, many in self.open_spans() for place in range(at, at + many)]
        if self.gather is not None:
            return places if self.gather.done() else []
        return [place for place in places if self.sinks[place].done()]

    def untaken(self) -> list[int]:
        """Places of the calls that have no outcome, and that `take_unwanted` has not returned."""
        if self._taken_back:
            return []
        places = [place for at, many in self.open_spans() for place in range(at, at + many)]
        return places if self.gather is not None else [each for each in places if self.sinks[each] is not _NOBODY]

    def take_unwanted(self) -> list[int]:
        """As `unwanted`, but returns each once."""
        answered, sinks = self.answered, self.sinks
        if self.gather is not None:
            if self._taken_back or not self.gather.done():
                return []
            self._taken_back = True
            return [at for at in range(self.count) if answered is None or not answered[at]]
        if answered is None:
            if not any(map(_is_done, sinks)):
                return []
            unwanted = [at for at, sink in enumerate(sinks) if sink.done() and sink is not _NOBODY]
        else:
            unwanted = [at for at, sink in enumerate(sinks) if not answered[at] and sink.done() and sink is not _NOBODY]
        for at in unwanted:
            sinks[at] = _NOBODY
        return unwanted
