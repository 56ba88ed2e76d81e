"""Events outlive their controller: a later one with the same state file shows them, and its cursors go on.

A file of events that cannot be written, or is damaged, keeps nothing else from working.
"""

from __future__ import annotations

import sqlite3
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from controller_service.core.event_log import (
    FIRST_BY_CLOCK,
    UNKNOWN,
    EventBounds,
    EventKind,
    FeedEvent,
    KeptEvents,
    Notice,
)
from controller_service.shell import events as event_archive
from controller_service.shell.events import EventArchive
from controller_service.store.protocol import EventsUnwritten
from controller_service.store.sqlite.events import EventFile, events_path
from slotmesh.v1 import controller_service_pb2 as pb
from tests.support.controllers import Controlled, eventually, running_controller
from tests.support.standing_by import leader_and_standby
from tests.support.wait import wait_until

MESH = "backends: {v1: {handler: 'app:One'}}"
BOUNDS = EventBounds(100, 100_000)


def tell(mesh: Controlled, *messages: str) -> None:
    for message in messages:
        mesh.controller.state.publish(Notice(kind=EventKind.REPLICA_READY, subject="replica/a", message=message))


async def events(operator: Any, **wanted: Any) -> list[pb.WatchEventsResponse]:
    """All that are kept; or those after a cursor."""
    request = pb.WatchEventsRequest(until_newest=True, **(wanted or {"from_oldest": True}))
    return [it async for it in operator.WatchEvents(request)]


def messages(found: list[pb.WatchEventsResponse]) -> list[str]:
    return [it.message for it in found]


def event(number: int, message: str = "", feed: str = "a") -> FeedEvent:
    return FeedEvent(feed, number, 1.5, Notice(kind=EventKind.REPLICA_READY, subject="replica/a", message=message))


@pytest.fixture
def file(tmp_path: Path) -> Iterator[EventFile]:
    opened = EventFile(tmp_path / "state.events", "g/1")
    yield opened
    opened.close()


# -- controllers -------------------------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_a_later_controller_shows_the_events_of_the_earlier_ones_and_goes_on_behind_them(tmp_path: Path) -> None:
    state = tmp_path / "state"
    async with running_controller(state=state) as mesh:
        await mesh.apply(MESH)
        tell(mesh, "1", "2")
        before = await events(mesh.operator)
    assert messages(before)[-2:] == ["1", "2"]
    async with running_controller(state=state) as mesh:
        tell(mesh, "3")
        after = await events(mesh.operator)
        assert [(it.kind, it.resource, it.message, it.time, it.cursor) for it in after[: len(before)]] == [
            (it.kind, it.resource, it.message, it.time, it.cursor) for it in before
        ]
        assert messages(after)[-1] == "3"
        follow = await events(mesh.operator, after=before[-2].cursor)
        assert [(it.message, it.missed) for it in follow][:1] == [("2", 0)]
        assert messages(follow)[-1] == "3"
    async with running_controller(state=state) as mesh:
        assert messages(await events(mesh.operator, after=after[-1].cursor)) == []
        assert messages(await events(mesh.operator))[-1] == "3"


@pytest.mark.asyncio
async def test_a_standby_that_takes_over_shows_the_events_of_the_leader(tmp_path: Path) -> None:
    async with leader_and_standby(tmp_path / "state") as (leader, standby):
        await leader.apply(MESH)
        before = await events(leader.operator)
        assert [it.resource for it in before] == [f"controller/{leader.address}", "backend/v1"]
        assert (before[0].kind, before[0].message) == (pb.EVENT_KIND_CONTROLLER_LEADS, "leads, term 1, since its start")
        await leader.end()
        await standby.leads()
        after = await events(standby.operator)
        assert [it.cursor for it in after[:2]] == [it.cursor for it in before]
        (took_over,) = (it for it in after[2:] if it.kind == pb.EVENT_KIND_CONTROLLER_LEADS)
        assert took_over.resource == f"controller/{standby.address}"
        assert took_over.message.startswith(f"leads, term 2, in place of the controller at {leader.address}")


@pytest.mark.asyncio
async def test_no_more_is_kept_than_the_settings_say_over_all_controllers(tmp_path: Path) -> None:
    state = tmp_path / "state"
    async with running_controller(state=state, max_events=3) as mesh:
        tell(mesh, "1", "2", "3", "4")
        first = (await events(mesh.operator))[0]
        assert (first.message, first.missed) == ("2", 1)
    async with running_controller(state=state, max_events=3) as mesh:
        tell(mesh, "5")
        assert messages(await events(mesh.operator)) == ["3", "4", "5"]
        late = await events(mesh.operator, after=first.cursor)
        assert [(it.message, it.missed) for it in late] == [("3", 0), ("4", 0), ("5", 0)]
    with sqlite3.connect(events_path(state)) as database:
        assert database.execute("SELECT count(*) FROM events").fetchone() == (3,)
    database.close()


@pytest.mark.asyncio
async def test_events_that_cannot_be_stored_stop_nothing_and_are_stored_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_archive, "RETRY_S", 0.01)
    monkeypatch.setattr(event_archive, "LONGEST_RETRY_S", 0.02)
    attempts: list[str] = []
    failed = EventArchive._failed

    def count(archive: EventArchive, error: EventsUnwritten, what: str) -> None:
        attempts.append(what)
        failed(archive, error, what)

    monkeypatch.setattr(EventArchive, "_failed", count)
    state = tmp_path / "state"
    in_the_way = events_path(state)
    in_the_way.mkdir()
    async with running_controller(state=state) as mesh:
        await mesh.apply(MESH)
        tell(mesh, "1")
        assert messages(await events(mesh.operator))[-1] == "1"
        assert mesh.controller.leadership.standing.problem == "", "the state itself can be written"
        before = len(attempts)
        await wait_until(lambda: len(attempts) >= before + 2, what="an attempt that no event has caused")
        in_the_way.rmdir()
        await wait_until(in_the_way.is_file, what="the file of events")
    async with running_controller(state=state) as mesh:
        assert "1" in messages(await events(mesh.operator))


def deny_reading(reason: str) -> Callable[[EventFile, EventBounds], list[FeedEvent]]:
    def load(file: EventFile, _bounds: EventBounds) -> list[FeedEvent]:
        raise EventsUnwritten(f"{file}: {reason}")

    return load


@pytest.mark.asyncio
async def test_events_that_could_not_be_read_at_a_start_are_shown_as_soon_as_they_can_and_none_is_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_archive, "RETRY_S", 0.01)
    monkeypatch.setattr(event_archive, "LONGEST_RETRY_S", 0.02)
    state, load = tmp_path / "state", EventFile.load
    async with running_controller(state=state) as mesh:
        tell(mesh, "1", "2")
    for number in range(3, 6):  # several starts, each on a disk that is full for a while
        monkeypatch.setattr(EventFile, "load", deny_reading("the disk is full"))
        async with running_controller(state=state) as mesh:
            tell(mesh, str(number))
            (own,) = await events(mesh.operator)
            assert (own.message, own.missed) == (str(number), UNKNOWN), "what was before is not known"
            monkeypatch.setattr(EventFile, "load", load)
            earlier = [str(it) for it in range(1, number + 1)]
            await eventually(lambda: shown(mesh, earlier), what="the earlier events")  # noqa: B023 - awaited at once
            tell(mesh, "last")
            assert messages(await events(mesh.operator, after=own.cursor)) == ["last"]
        with sqlite3.connect(events_path(state)) as database:
            database.execute("DELETE FROM events WHERE message = 'last'")
        database.close()
    async with running_controller(state=state) as mesh:
        assert messages(await events(mesh.operator)) == ["1", "2", "3", "4", "5"]


async def shown(mesh: Controlled, wanted: list[str]) -> bool:
    return messages(await events(mesh.operator)) == wanted


def test_events_that_are_read_late_fill_the_bounds_from_the_newest_on() -> None:
    kept = KeptEvents(EventBounds(3, 100_000))
    kept.add(event(FIRST_BY_CLOCK + 7, "own"))
    assert kept.missed_before == UNKNOWN
    kept.put_before([event(1), event(2), event(3)])
    assert [it.number for it in kept] == [2, 3, FIRST_BY_CLOCK + 7]
    assert (kept.dropped_through, kept.missed_before) == (1, 1)
    small = KeptEvents(EventBounds(100, 2 * event(1).size))
    small.add(event(9))
    small.put_before([event(1), event(2)])
    assert [it.number for it in small] == [2, 9]


@pytest.mark.asyncio
@pytest.mark.parametrize("content", [b"no database at all" * 100, b"SQLite format 3\0" + b"\xff" * 4096])
async def test_a_damaged_file_of_events_is_put_aside_and_begun_anew(tmp_path: Path, content: bytes) -> None:
    state = tmp_path / "state"
    events_path(state).write_bytes(content)
    async with running_controller(state=state) as mesh:
        await mesh.apply(MESH)
        tell(mesh, "1")
        await wait_until(events_path(state).is_file, what="a new file of events")
    aside = tmp_path / "state.events.damaged"
    assert aside.read_bytes() == content
    async with running_controller(state=state) as mesh:
        assert "1" in messages(await events(mesh.operator))


# -- the file ----------------------------------------------------------------------------------------------------------


def test_what_is_stored_is_loaded_within_the_bounds(file: EventFile, tmp_path: Path) -> None:
    assert file.load(BOUNDS) == []
    stored = [event(number, f"{number} \u20ac") for number in range(1, 6)]
    file.append(stored, 0)
    file.append(stored[3:], 2)  # once more, as after an error whose outcome is not known
    file.close()
    later = EventFile(tmp_path / "state.events", "g/2")
    assert later.load(BOUNDS) == stored[2:]
    assert later.load(EventBounds(2, 100_000)) == stored[3:]
    assert later.load(EventBounds(100, 2 * stored[0].size)) == stored[3:]
    assert later.load(EventBounds(100, 2 * stored[0].size - 1)) == stored[4:]
    later.close()


def test_the_file_is_its_users_alone(file: EventFile, tmp_path: Path) -> None:
    file.load(BOUNDS)
    file.append([event(1)], 0)
    for path in tmp_path.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path


def test_an_earlier_leader_writes_nothing_any_more(file: EventFile, tmp_path: Path) -> None:
    file.load(BOUNDS)
    file.append([event(1)], 0)
    later = EventFile(tmp_path / "state.events", "g/2")
    assert later.load(BOUNDS) == [event(1)]
    for _ in range(2):  # the second time it opens the file anew
        with pytest.raises(EventsUnwritten, match="another controller leads") as refusal:
            file.append([event(2, "of the earlier one")], 1)
        assert refusal.value.is_final
    later.append([event(2, "of the later one", feed="b")], 0)
    assert later.load(BOUNDS) == [event(1), event(2, "of the later one", feed="b")]
    later.close()


def test_a_file_that_was_deleted_is_begun_anew(file: EventFile, tmp_path: Path) -> None:
    file.load(BOUNDS)
    file.append([event(1)], 0)
    for path in tmp_path.iterdir():
        path.unlink()
    file.append([event(2)], 0)
    assert file.load(BOUNDS) == [event(2)]


def test_events_of_kinds_that_are_not_known_are_left_out_and_their_numbers_given_again(
    file: EventFile, tmp_path: Path
) -> None:
    file.load(BOUNDS)
    file.append([event(1), event(2), event(3)], 0)
    with sqlite3.connect(tmp_path / "state.events") as database:
        database.execute("UPDATE events SET kind = 9999 WHERE number <> 2")
    database.close()
    assert file.load(BOUNDS) == [event(2)]
    file.append([event(3, "new")], 0)
    assert file.load(BOUNDS) == [event(2), event(3, "new")]


def test_what_could_not_be_read_is_not_mixed_with_what_follows(tmp_path: Path) -> None:
    file = EventFile(tmp_path / "state.events", "g/1")
    file.load(BOUNDS)
    file.append([event(7, "old")], 0)
    file.close()
    unread = EventFile(tmp_path / "state.events", "g/2")
    with pytest.raises(EventsUnwritten, match="have not been read") as refusal:
        unread.append([event(1, "new")], 0)
    assert not refusal.value.is_final
    assert unread.load(BOUNDS) == [event(7, "old")]
    unread.append([event(8, "new")], 0)
    assert unread.load(BOUNDS) == [event(7, "old"), event(8, "new")]
    unread.close()


def test_a_file_of_a_newer_version_is_left_as_it_is(file: EventFile, tmp_path: Path) -> None:
    file.load(BOUNDS)
    file.append([event(1)], 0)
    file.close()
    with sqlite3.connect(tmp_path / "state.events") as database:
        database.execute("PRAGMA user_version = 99")
    database.close()
    older = EventFile(tmp_path / "state.events", "g/2")
    for use in (lambda: older.load(BOUNDS), lambda: older.append([event(2)], 0)):
        with pytest.raises(EventsUnwritten, match="newer slotmesh") as refusal:
            use()
        assert refusal.value.is_final
    with sqlite3.connect(tmp_path / "state.events") as database:
        assert database.execute("SELECT number FROM events").fetchall() == [(1,)]
    database.close()


def test_texts_that_are_no_unicode_are_stored_as_far_as_they_are(file: EventFile) -> None:
    file.load(BOUNDS)
    file.append([event(1, "a file \udce4 of this name")], 0)
    assert file.load(BOUNDS) == [event(1, "a file ? of this name")]
