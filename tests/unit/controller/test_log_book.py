"""What launched replicas write: files that are followed and rotated while they are written to."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import IO

import pytest
import pytest_asyncio

from controller_service.shell import replica_logs
from controller_service.shell.log_tail import BEHIND_BYTES, PIECE_BYTES
from controller_service.shell.replica_logs import ENDED_KEPT, MAX_LINE_BYTES, LogBook, LogLines, LogPage
from tests.support.wait import wait_until

pytestmark = pytest.mark.asyncio


class Writer:
    """A replica's output, written as a replica does: to a descriptor that appends, and stays open."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write(self, text: str) -> None:
        os.write(self._file, text.encode())


@pytest.fixture
def writer(tmp_path: Path) -> Writer:
    return Writer(tmp_path / "v1-a.log")


@pytest_asyncio.fixture
async def echoed() -> list[bytes]:
    return []


@pytest_asyncio.fixture
async def book(writer: Writer, echoed: list[bytes]) -> AsyncIterator[LogBook]:
    book = LogBook(max_bytes=1 << 20, echo=echoed.append)
    book.follow("v1-a", "v1", writer.path)
    yield book
    await book.close()


async def pages(book: LogBook, name: str, *, count: int = 100) -> list[LogPage]:
    return [page async for page in book.read(name, count=count, follow=False)]


async def test_lines_are_read_kept_and_echoed_whole(book: LogBook, writer: Writer, echoed: list[bytes]) -> None:
    writer.write("one\ntwo\nthr")
    book.look()
    assert await pages(book, "v1-a") == [LogPage("v1-a", ["one", "two"])]
    assert echoed == [b"one\ntwo\n"]
    writer.write("ee")
    assert book.finish("v1-a") == "one\ntwo\nthree"
    assert echoed == [b"one\ntwo\n", b"three\n"]
    assert await pages(book, "v1", count=1) == [LogPage("v1-a", ["three"])]
    assert [book.knows(it, of_backend=True) for it in ("v1", "v1-a", "v")] == [True, False, False]
    assert [book.knows(it, of_backend=False) for it in ("v1", "v1-a", "v")] == [False, True, False]


@pytest.mark.parametrize("end", [b"", b"\n"])
async def test_no_piece_of_a_long_line_divides_a_character(end: bytes) -> None:
    lines, text = LogLines(), "x" + "é🙂" * MAX_LINE_BYTES
    lines.feed(text.encode() + end)
    lines.end()
    assert len(lines.tail(10)) > 1
    assert "".join(lines.tail(10)) == text


async def test_who_follows_a_replica_reads_until_it_ends(book: LogBook, writer: Writer) -> None:
    read: list[str] = []

    async def follow() -> None:
        async for page in book.read("v1-a", count=1, follow=True):
            read.extend(page.lines)

    writer.write("before\nlast\n")
    book.look()
    following = asyncio.ensure_future(follow())
    await wait_until(lambda: read == ["last"])
    writer.write("next\n")
    book.look()
    await wait_until(lambda: read == ["last", "next"])
    writer.write("end")
    book.finish("v1-a")
    await asyncio.wait_for(following, 5.0)
    assert read == ["last", "next", "end"]


async def test_who_follows_a_backend_reads_its_new_replicas_too(book: LogBook, tmp_path: Path) -> None:
    read: list[tuple[str, str]] = []

    async def follow() -> None:
        async for page in book.read("v1", count=1, follow=True):
            read.extend((page.replica_id, line) for line in page.lines)

    following = asyncio.ensure_future(follow())
    await asyncio.sleep(0)
    second = Writer(tmp_path / "v1-b.log")
    book.follow("v1-b", "v1", second.path)
    second.write("hello\n")
    book.look()
    await wait_until(lambda: read == [("v1-b", "hello")])
    following.cancel()


async def test_replicas_that_run_go_first_and_of_those_that_have_ended_only_the_newest(tmp_path: Path) -> None:
    book = LogBook(max_bytes=1_000)
    for name in "abcd":
        writer = Writer(tmp_path / f"v1-{name}.log")
        book.follow(f"v1-{name}", "v1", writer.path)
        writer.write(f"{name}\n")
    for name in "abd":
        book.finish(f"v1-{name}")
    book.look()

    async def read(max_ended: int | None, name: str = "v1") -> list[tuple[str, tuple[str, ...]]]:
        pages = book.read(name, count=1, follow=False, max_ended=max_ended)
        return [(page.replica_id, page.left_out) async for page in pages]

    assert await read(None) == [("v1-c", ()), ("v1-d", ()), ("v1-b", ()), ("v1-a", ())]
    assert await read(3) == await read(None)
    assert await read(1) == [("v1-c", ("v1-b", "v1-a")), ("v1-d", ())]
    assert await read(0) == [("v1-c", ("v1-d", "v1-b", "v1-a"))]
    assert await read(0, "v1-a") == [("v1-a", ())], "it was named"
    book.finish("v1-c")
    assert await read(0) == [("", ("v1-d", "v1-c", "v1-b", "v1-a"))], "in the order in which they were started"
    await book.close()


async def test_a_large_file_is_rotated_while_it_is_written_to_and_no_line_is_lost(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "v1-a.log")
    echoed: list[bytes] = []
    book = LogBook(max_bytes=64 * 1024, echo=echoed.append)
    book.follow("v1-a", "v1", writer.path)
    older = tmp_path / "v1-a.log.1"
    number = 0
    while not (older.exists() and older.stat().st_size > 64 * 1024 and writer.path.stat().st_size < 32 * 1024):
        for _ in range(100):
            writer.write(f"line {number}\n")
            number += 1
        book.look()
        await asyncio.sleep(0)
        assert number < 1_000_000
    writer.write("behind the cut\n")
    book.finish("v1-a")
    lines = b"".join(echoed).decode().splitlines()
    assert lines == [*(f"line {each}" for each in range(number)), "behind the cut"]
    assert writer.path.read_text().endswith("behind the cut\n")
    assert older.stat().st_mode & 0o077 == 0
    await book.close()


async def test_the_rotated_file_is_never_readable_for_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = Writer(tmp_path / "v1-a.log")
    older = tmp_path / "v1-a.log.1"
    older.touch(0o644)
    modes: list[int] = []

    def copy(source: IO[bytes], target: IO[bytes]) -> None:
        modes.append(os.fstat(target.fileno()).st_mode & 0o777)
        target.write(source.read())

    monkeypatch.setattr("shutil.copyfileobj", copy)
    monkeypatch.setattr("shutil.copyfile", lambda *_: modes.append(0))
    book = LogBook(max_bytes=64)
    book.follow("v1-a", "v1", writer.path)
    writer.write("x" * 100 + "\n")
    book.look()
    await wait_until(lambda: not writer.path.stat().st_size, what="the cut")
    assert modes == [0o600]
    assert older.read_text() == "x" * 100 + "\n"
    await book.close()


async def test_a_file_that_cannot_be_rotated_is_read_on_and_tried_again_later(
    book: LogBook, writer: Writer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "v1-a.log.1").mkdir()
    line = "x" * 1023 + "\n"
    for _ in range(1_100):
        writer.write(line)
        book.look()
    await wait_until(lambda: "cannot be rotated" in caplog.text, what="the warning")
    for _ in range(50):
        writer.write(line)
        book.look()
        await asyncio.sleep(0)
    assert caplog.text.count("cannot be rotated") == 1
    writer.write("still read\n")
    assert book.finish("v1-a").endswith("still read")


async def test_who_is_far_behind_skips_and_says_so(book: LogBook, writer: Writer) -> None:
    writer.write("x" * 99 + "\n")
    writer.write(("y" * 99 + "\n") * (2 * BEHIND_BYTES // 100))
    book.look()
    (page,) = await pages(book, "v1-a", count=10_000)
    assert "bytes left out" in page.lines[0]
    assert len(page.lines) <= PIECE_BYTES // 100 + 2


async def test_a_book_of_a_new_controller_has_what_was_written_before(tmp_path: Path) -> None:
    echoed: list[bytes] = []
    book = LogBook(max_bytes=1 << 20, echo=echoed.append)
    for name in ("v1-living", "v1-ended"):
        Writer(tmp_path / name).write("before\n")
    book.follow("v1-living", "v1", tmp_path / "v1-living", is_older=True)
    book.remember("v1-ended", "v1", tmp_path / "v1-ended")
    told = await pages(book, "v1")
    assert told == [LogPage("v1-living", ["before"]), LogPage("v1-ended", ["before"])]
    assert not echoed, "it was, when it was written"
    await book.close()


async def test_of_ended_replicas_the_newest_are_kept(tmp_path: Path) -> None:
    book = LogBook(max_bytes=1 << 20)
    for number in range(ENDED_KEPT + 2):
        path = tmp_path / f"r-{number}"
        Writer(path).write("x\n")
        book.follow(path.name, "r", path)
        book.finish(path.name)
    assert not book.knows("r-1", of_backend=False)
    assert book.knows("r-2", of_backend=False)


async def test_it_looks_by_itself(book: LogBook, writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_logs, "LOOK_EVERY_S", 0.001)
    looking = asyncio.ensure_future(book.run())
    writer.write("soon\n")
    await wait_until(lambda: looking.done() or book._entries["v1-a"].lines.tail(1) == ["soon"])
    looking.cancel()
