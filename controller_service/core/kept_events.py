"""Which events are kept: the newest, within a number and their bytes. Those of earlier controllers are among them.

Invariants: numbers ascend, over all feeds; the bounds hold after each addition, but for the newest event, which is
always kept.
Owner: the feed; the archive reads what it has not stored.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import takewhile
from typing import Final, NamedTuple

from controller_service.core.notices import Notice

UNKNOWN: Final = -1
"""Some events were missed; their number is not known."""
_EVENT_BYTES: Final = 100
"""What an event takes of the bound besides its texts."""


class EventBounds(NamedTuple):
    """What is kept of events, at most."""

    events: int = 10_000
    size: int = 8 * 1024 * 1024
    """Bytes of their texts, and 100 for each."""


@dataclass(frozen=True, slots=True)
class FeedEvent:
    """A notice, its time in seconds since 1970, and its place."""

    feed: str
    """Of the controller that published it."""
    number: int
    """From 1 on. A feed goes on with the numbers of the one before it."""
    time_s: float
    notice: Notice

    @property
    def size(self) -> int:
        """What it takes of the bound, bytes."""
        notice = self.notice
        return _EVENT_BYTES + sum(len(text.encode("utf-8", "replace")) for text in (notice.subject, notice.message))


class KeptEvents:
    """The newest events, oldest first."""

    def __init__(self, bounds: EventBounds, earlier: Iterable[FeedEvent] = ()) -> None:
        self._bounds = bounds
        self._events: deque[FeedEvent] = deque()
        self._size = 0
        for event in earlier:
            self.add(event)

    def __len__(self) -> int:
        return len(self._events)

    def __iter__(self) -> Iterator[FeedEvent]:
        return iter(self._events)

    @property
    def newest_number(self) -> int:
        """0 if there is no event."""
        return self._events[-1].number if self._events else 0

    @property
    def dropped_through(self) -> int:
        """Events up to this number are not kept."""
        return self._events[0].number - 1 if self._events else 0

    def add(self, event: FeedEvent) -> None:
        self._events.append(event)
        self._size += event.size
        while len(self._events) > max(1, self._bounds.events) or (
            self._size > self._bounds.size and len(self._events) > 1
        ):
            self._size -= self._events.popleft().size

    def newer_than(self, number: int) -> list[FeedEvent]:
        """Events with larger numbers, oldest first."""
        newer = [*takewhile(lambda event: event.number > number, reversed(self._events))]
        return newer[::-1]

    def after(self, feed: str, number: int) -> tuple[list[FeedEvent], int]:
        """Events after one of a feed, and how many that followed on it are not kept: UNKNOWN if that is not known."""
        numbers = [event.number for event in self._events if event.feed == feed]
        if not numbers:
            return list(self._events), UNKNOWN
        if number > numbers[-1]:  # it was never stored, nor perhaps what followed on it
            return self.newer_than(numbers[-1]), UNKNOWN
        return self.newer_than(max(number, numbers[0] - 1)), max(0, numbers[0] - 1 - number)
