"""Which events are kept, and what follows on a cursor: over the feeds of several controllers."""

from __future__ import annotations

import pytest

from controller_service.core.event_log import UNKNOWN, EventBounds, EventKind, FeedEvent, KeptEvents, Notice


def event(feed: str, number: int, message: str = "") -> FeedEvent:
    return FeedEvent(feed, number, float(number), Notice(kind=EventKind.REPLICA_READY, subject="s", message=message))


def numbers(events: list[FeedEvent]) -> list[int]:
    return [it.number for it in events]


def test_the_newest_are_kept_within_their_number() -> None:
    kept = KeptEvents(EventBounds(3), [event("a", 1), event("a", 2)])
    for number in (3, 4, 5):
        kept.add(event("b", number))
    assert numbers([*kept]) == [3, 4, 5]
    assert (kept.newest_number, kept.dropped_through, len(kept)) == (5, 2, 3)


def test_the_newest_are_kept_within_their_bytes_however_many_bytes_a_character_has() -> None:
    size = event("a", 1, "\u20ac" * 100).size
    assert size == 100 + 1 + 300
    kept = KeptEvents(EventBounds(100, 2 * size))
    for number in range(1, 5):
        kept.add(event("a", number, "\u20ac" * 100))
    assert numbers([*kept]) == [3, 4], "exactly two fit"
    kept.add(event("a", 5, "x" * 10_000))
    assert numbers([*kept]) == [5], "the newest is always kept"
    kept.add(event("a", 6))
    assert numbers([*kept]) == [6]


FEEDS = [event("a", 3), event("a", 4), event("b", 5), event("b", 6), event("c", 7)]


@pytest.mark.parametrize(
    ("feed", "number", "follow", "missed"),
    [
        ("a", 4, [5, 6, 7], 0),
        ("a", 3, [4, 5, 6, 7], 0),
        ("a", 2, [3, 4, 5, 6, 7], 0),
        ("a", 1, [3, 4, 5, 6, 7], 1),
        ("b", 5, [6, 7], 0),
        ("c", 7, [], 0),
        ("a", 5, [5, 6, 7], UNKNOWN),
        ("b", 9, [7], UNKNOWN),
        ("x", 5, [3, 4, 5, 6, 7], UNKNOWN),
    ],
)
def test_what_follows_on_a_cursor_of_any_feed(feed: str, number: int, follow: list[int], missed: int) -> None:
    """`a 5` was published by `a` and not stored: `b` has given its number to another event."""
    found, unheard = KeptEvents(EventBounds(), FEEDS).after(feed, number)
    assert (numbers(found), unheard) == (follow, missed)


def test_without_events_nothing_follows() -> None:
    kept = KeptEvents(EventBounds())
    assert (kept.newest_number, kept.dropped_through, kept.newer_than(0)) == (0, 0, [])
    assert kept.after("a", 1) == ([], UNKNOWN)
