"""The feed of events: bounds of watchers, what is kept for those that come later, and cursors."""

from __future__ import annotations

import pytest

from controller_service.core.event_log import UNKNOWN, EventBounds, EventKind, Notice
from controller_service.shell.events import EventFeed, NoCursor, Watcher


def publish(feed: EventFeed, *numbers: int) -> None:
    for number in numbers:
        feed.publish(float(number), Notice(kind=EventKind.REPLICA_READY, subject="s", message=str(number)))


async def heard(watcher: Watcher, count: int) -> list[tuple[str, int]]:
    """Messages and how many events were missed before each."""
    events = [await watcher.next() for _ in range(count)]
    return [(event.notice.message, missed) for event, missed in events]


@pytest.mark.asyncio
async def test_each_watcher_has_a_bound_of_its_own_and_is_told_what_it_missed() -> None:
    feed = EventFeed("a", bound=3)
    with feed.watch() as reader, feed.watch() as sleeper:
        for number in range(5):
            publish(feed, number)
            assert await heard(reader, 1) == [(str(number), 0)]
        assert await heard(sleeper, 2) == [("2", 2), ("3", 0)]
    publish(feed, 5, 6, 7)  # nobody watches any more
    with feed.watch() as late:
        publish(feed, 8)
        assert await heard(late, 1) == [("8", 0)]


@pytest.mark.asyncio
async def test_what_is_kept_is_heard_later_after_a_cursor_or_from_the_oldest_on() -> None:
    feed = EventFeed("a", bound=2, kept=EventBounds(4))
    with feed.watch() as first:
        publish(feed, 1)
        event, _ = await first.next()
    cursor = feed.cursor(event)
    publish(feed, 2, 3)
    with feed.watch(after=cursor) as later:
        publish(feed, 4)
        assert await heard(later, 3) == [("2", 0), ("3", 0), ("4", 0)]
    publish(feed, 5, 6)  # 2 is not kept any more
    with feed.watch(after=cursor) as late, feed.watch(from_oldest=True) as oldest:
        assert await heard(late, 4) == [("3", 1), ("4", 0), ("5", 0), ("6", 0)]
        assert await heard(oldest, 1) == [("3", 2)]


@pytest.mark.asyncio
@pytest.mark.parametrize("foreign", ["b-1", "a-4"])
async def test_after_a_cursor_of_another_feed_all_that_is_kept_is_heard_and_more_may_be_missed(foreign: str) -> None:
    feed = EventFeed("a", kept=EventBounds(2))
    publish(feed, 1, 2, 3)
    with feed.watch(after=foreign) as watcher:
        assert await heard(watcher, 2) == [("2", UNKNOWN), ("3", 0)]


@pytest.mark.parametrize("text", ["x", "a-", "-1", "a-1x", "a-" + "9" * 19, "A-1", "a-\u0661"])
def test_what_is_no_cursor_is_refused_at_once(text: str) -> None:
    with pytest.raises(NoCursor):
        EventFeed("a").watch(after=text)


@pytest.mark.asyncio
async def test_a_watcher_that_asked_for_much_has_room_for_it() -> None:
    feed = EventFeed("a", bound=1, kept=EventBounds(5))
    publish(feed, 1, 2, 3, 4, 5)
    with feed.watch(from_oldest=True) as watcher:
        publish(feed, 6)
        assert [message for message, _ in await heard(watcher, 6)] == ["1", "2", "3", "4", "5", "6"]
