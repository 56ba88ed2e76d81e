"""A file that is read again: when it is, and what happens while it cannot be used."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from slotmesh.security.secret_files import STALE_S, UnusableFile, WatchedFile
from tests.support.wait import wait_until


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def read(path: Path) -> str:
    text = path.read_text() if path.exists() else "bad"
    if text.startswith("bad"):
        raise UnusableFile(f"{path}: {text}")
    return text


def written(path: Path, text: str) -> None:
    path.write_text(text)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_text("one")
    return path


def test_a_file_that_cannot_be_used_is_none_to_begin_with(path: Path) -> None:
    path.write_text("bad")
    with pytest.raises(UnusableFile):
        WatchedFile(path, read)


def test_it_is_looked_at_once_a_second(path: Path, clock: Clock) -> None:
    file = WatchedFile(path, read, now=clock)
    path.write_text("two")
    clock.now = 0.9
    assert file.look() == "one"
    clock.now = 1.0
    assert file.look() == "two"
    assert file.version == 2
    clock.now = 2.0
    file.look()
    assert file.version == 2, "nothing has changed"


@pytest.mark.asyncio
async def test_who_asks_does_not_wait_and_finds_the_newest_after_a_silence_as_well(path: Path, clock: Clock) -> None:
    readers: list[threading.Thread] = []
    may_read = threading.Event()
    may_read.set()

    def noting(path: Path) -> str:
        readers.append(threading.current_thread())
        assert may_read.wait(5)
        return read(path)

    file = WatchedFile(path, noting, now=clock)
    may_read.clear()
    assert file.current() == "one"
    written(path, "two")
    clock.now = 1000.0
    await wait_until(lambda: len(readers) == 2, what="the thread looks though nobody asks")
    assert file.current() == "one", "who asks meanwhile does not wait"
    may_read.set()
    await wait_until(lambda: file.version == 2)
    assert file.current() == "two"
    assert threading.current_thread() not in readers[1:]


def test_who_asks_first_after_a_silence_gets_the_newest(path: Path, clock: Clock) -> None:
    file = WatchedFile(path, read, now=clock)
    path.write_text("two")
    clock.now = STALE_S
    assert file.current() == "two"


@pytest.mark.asyncio
async def test_the_thread_ends_with_the_file(path: Path) -> None:
    def is_watched() -> bool:
        return any(each.name == "look at file" for each in threading.enumerate())

    file = WatchedFile(path, read)
    file.current()
    assert is_watched()
    del file
    await wait_until(lambda: not is_watched())


def test_a_bad_file_leaves_the_old_one_and_is_counted_once_a_change(
    path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    file = WatchedFile(path, read, now=clock)
    for text, failed in (("bad", 1), ("bad", 1), ("bad too", 2), (None, 3), (None, 3)):
        clock.now += 1
        path.unlink() if text is None and path.exists() else path.write_text(text) if text else None
        assert file.look() == "one"
        assert file.failed_reloads == failed
    assert len(caplog.records) == 3
    path.write_text("two")
    clock.now += 1
    assert file.look() == "two"
    path.write_text("bad")
    clock.now += 1
    file.look()
    assert file.failed_reloads == 4


def test_a_file_that_changes_twice_in_a_tick_of_its_clock_is_read_twice(path: Path, clock: Clock) -> None:
    file = WatchedFile(path, read, now=clock)
    times = (path.stat().st_atime_ns, path.stat().st_mtime_ns)
    path.write_text("two")
    os.utime(path, ns=times)
    clock.now = 1.0
    assert file.look() == "two"
