"""One replica as the router sees it: what was sent there, and what more it can take.

Purpose: exact knowledge of the router's own load, the newest report of everybody else's, and which run id means what.
Invariants: `own` and `keyed` are the sums of the unanswered calls in `inflight`; run ids strictly increase on a link.
Owner: the scheduler.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from router_service.core.calls import Run, Sent

if TYPE_CHECKING:
    from collections.abc import Iterator

    from router_service.core.backends import Backend
    from router_service.core.partitions import Partition
    from router_service.core.table import ReplicaRoute

DEFAULT_KEYED_WINDOW = 8192
"""Keyed calls unanswered at a replica that has not said otherwise."""
_SWEEP_FROM = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """A replica's own report. Counts calls."""

    max_ongoing: int
    prefetch: int = 0
    others: int = 0
    """Room taken by anything but this router's unkeyed calls."""
    keyed_window: int = DEFAULT_KEYED_WINDOW
    draining: bool = False


class Replica:
    """One incarnation of a replica. Compared by identity."""

    __slots__ = (
        "_next_id",
        "_starts",
        "address",
        "backend",
        "capacity",
        "draining",
        "inflight",
        "key",
        "keyed",
        "linked",
        "listed",
        "own",
        "ready",
        "retired",
        "version",
    )

    def __init__(self, route: ReplicaRoute, backend: Backend) -> None:
        self.key = route.key
        self.address = route.address
        self.backend = backend
        self.capacity = Capacity(max_ongoing=route.max_ongoing)
        self.draining = route.draining
        self.linked = False
        """The Execute stream is up and the replica has said what it can take."""
        self.listed = True
        """The routing table names it."""
        self.retired = False
        """The table no longer names it and it owes no answer: disconnected for good."""
        self.own = 0
        """This router's unkeyed calls there, unanswered."""
        self.keyed = 0
        """This router's keyed calls there, unanswered."""
        self.inflight: dict[int, Sent] = {}
        """Slices with unanswered calls, by first run id."""
        self.ready: deque[Partition] = deque()
        """Partitions with something to send here, in turn."""
        self.version = 0
        """Counts changes of load; a balancer's entries of older versions are stale."""
        self._next_id = 1
        self._starts: list[int] = []

    @property
    def replica_id(self) -> str:
        """The identity that outlives incarnations."""
        return self.key[0]

    @property
    def free(self) -> int:
        """Unkeyed calls that it can take now."""
        if not self.linked or self.draining:
            return 0
        capacity = self.capacity
        return capacity.max_ongoing + capacity.prefetch - capacity.others - self.own

    @property
    def load(self) -> float:
        """Share of its permits in use; 1.0 is full."""
        return (self.own + self.capacity.others) / self.capacity.max_ongoing

    @property
    def keyed_room(self) -> int:
        """Keyed calls that its window has room for."""
        return self.capacity.keyed_window - self.keyed if self.linked else 0

    def send(self, run: Run, count: int, owner_epoch: int) -> Sent:
        """Takes the next `count` waiting calls of the run under new run ids."""
        first = self._next_id
        self._next_id = first + count
        sent = Sent(first, run, run.cursor, count, self, owner_epoch)
        run.cursor += count
        run.sents.append(sent)
        self.inflight[first] = sent
        self._starts.append(first)
        if run.partition is None:
            self.own += count
        else:
            self.keyed += count
        return sent

    def slices(self, ids: list[int]) -> Iterator[tuple[Sent, int, int, int]]:
        """Cuts answered run ids into slices: (sent, offset in the slice, index in `ids`, count). Unknown ids vanish."""
        at, end = 0, len(ids)
        while at < end:
            first = ids[at]
            sent = self.inflight.get(first) or self._covering(first)
            if sent is None:
                at += 1
                continue
            offset = first - sent.first
            count = min(sent.count - offset, end - at)
            if count > 1 and ids[at : at + count] != list(range(first, first + count)):
                count = _run_length(ids, at, count)
            yield sent, offset, at, count
            at += count

    def answered(self, sent: Sent, count: int) -> None:
        """`count` calls of the slice were answered, now taken out of `sent.remaining`."""
        if sent.run.partition is None:
            self.own -= count
        else:
            self.keyed -= count
        if sent.remaining == 0:
            del self.inflight[sent.first]
            sent.run.sents.remove(sent)
            if len(self._starts) > _SWEEP_FROM + 2 * len(self.inflight):
                self._starts = [start for start in self._starts if start in self.inflight]

    def lose(self) -> list[Sent]:
        """The link broke: forgets and returns all that was sent and not answered, in order of sending."""
        lost = list(self.inflight.values())
        self.inflight.clear()
        self._starts.clear()
        self.own = self.keyed = 0
        self._next_id = 1
        self.linked = False
        return lost

    def _covering(self, run_id: int) -> Sent | None:
        index = bisect_right(self._starts, run_id) - 1
        if index < 0:
            return None
        sent = self.inflight.get(self._starts[index])
        return sent if sent is not None and run_id < sent.first + sent.count else None


def _run_length(ids: list[int], at: int, most: int) -> int:
    """How many of `ids[at:at+most]` are consecutive."""
    first = ids[at]
    count = 1
    while count < most and ids[at + count] == first + count:
        count += 1
    return count
