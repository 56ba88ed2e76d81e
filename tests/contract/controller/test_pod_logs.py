"""Logs of pods as `slotmesh logs` gets them: connections break, pods end, rights are missing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

import pytest

from controller_service.shell.launchers.kubernetes import pod_logs
from controller_service.shell.launchers.kubernetes.api import ApiRefused
from controller_service.shell.launchers.protocol import LaunchOrder
from controller_service.shell.replica_logs import LogPage
from slotmesh.errors import PermissionDenied
from tests.support.kubernetes_launcher import FollowedPods, following_pods, numbered
from tests.support.wait import wait_until, within

ORDER = LaunchOrder(backend="v1", handler="app:Cart", template="t", fixed="f")
FORBIDDEN = ApiRefused(403, "Forbidden", 'pods "v1-1" is forbidden: cannot get resource "pods/log"')
pytestmark = pytest.mark.asyncio


@asynccontextmanager
async def running(count: int) -> AsyncIterator[FollowedPods]:
    async with following_pods(mint_id=numbered()) as it:
        await it.launcher.start(ORDER, count)
        await wait_until(lambda: len(it.observed()) == count, what="pods")
        yield it


async def read(it: FollowedPods, name: str = "v1", count: int = 100, max_ended: int | None = None) -> list[LogPage]:
    return [page async for page in it.book.read(name, count=count, follow=False, max_ended=max_ended)]


class Reader:
    """Follows a replica, or a backend."""

    def __init__(self, it: FollowedPods, name: str = "v1-1", count: int = 100) -> None:
        self.pages: AsyncGenerator[LogPage, None] = it.book.read(name, count=count, follow=True)

    async def lines(self, count: int) -> list[str]:
        """The next ones, each behind its replica."""
        found: list[str] = []
        while len(found) < count:
            page = await within(anext(self.pages), what=f"lines after {found}")
            found += [f"{page.replica_id} {line}" for line in page.lines]
        return found

    async def rest(self) -> list[str]:
        """Those until it ends."""
        return [line async for page in self.pages for line in page.lines]


async def test_the_newest_lines_of_each_replica_are_read_and_then_those_of_the_ones_that_have_ended() -> None:
    async with running(3) as it:
        for replica_id in it.observed():
            it.api.write(replica_id, "a", "b", replica_id)
        it.api.end("v1-1", 3)
        await wait_until(lambda: it.pods() == ["v1-2", "v1-3"], what="the deletion")
        assert [(page.replica_id, page.lines) for page in await read(it, count=2)] == [
            ("v1-3", ["b", "v1-3"]),
            ("v1-2", ["b", "v1-2"]),
            ("v1-1", ["b", "v1-1"]),
        ]
        (page,) = await read(it, "v1-1")
        assert page.lines == ["a", "b", "v1-1"]
        first, *_ = await read(it, max_ended=0)
        assert first.left_out == ("v1-1",)
        assert it.book.names() == ["v1", "v1-1", "v1-2", "v1-3"]
        assert it.book.knows("v1", of_backend=True)
        assert it.book.knows("v1-2", of_backend=False)
        assert not it.book.knows("v1-2", of_backend=True)


async def test_a_reader_gets_each_line_once_though_its_connection_breaks_and_ends_with_the_replica() -> None:
    async with running(1) as it:
        it.api.write("v1-1", "0", "1", "2")
        reader = Reader(it, count=2)
        assert await reader.lines(2) == ["v1-1 1", "v1-1 2"]
        for number in range(3, 6):
            it.api.break_logs()
            await wait_until(lambda: len(it.api.log_requests) == number - 1, what="another request")  # noqa: B023
            it.api.write("v1-1", str(number))
            assert await reader.lines(1) == [f"v1-1 {number}"]
        it.api.write("v1-1", "last")
        it.api.end("v1-1")
        assert await within(reader.rest(), what="the end") == ["last"]
        lines = [request[2] for request in it.api.log_requests]
        assert lines[:4] == [2, None, None, None]


async def test_replicas_of_a_backend_that_are_started_later_are_followed_too() -> None:
    async with running(1) as it:
        it.api.write("v1-1", "old", "a")
        reader = Reader(it, "v1", count=1)
        assert await reader.lines(1) == ["v1-1 a"]
        it.api.write("v1-2", "b", "c")
        await it.launcher.start(ORDER, 2)
        assert await reader.lines(2) == ["v1-2 b", "v1-2 c"]
        it.api.end("v1-1")
        await wait_until(lambda: it.observed() == ["v1-2"], what="the end of the first one")
        it.api.write("v1-2", "d")
        assert await reader.lines(1) == ["v1-2 d"]
        await reader.pages.aclose()


async def test_a_missing_right_is_an_error_that_names_it() -> None:
    async with running(1) as it:
        it.api.log_refusal = FORBIDDEN
        for follow in (False, True):
            with pytest.raises(PermissionDenied, match=r"the verb `get` of the resource `pods/log`"):
                async for _ in it.book.read("v1-1", count=1, follow=follow):
                    pass
        it.api.end("v1-1")
        await wait_until(lambda: not it.pods(), what="the deletion")
        assert not it.book.knows("v1-1", of_backend=False)


async def test_what_is_refused_otherwise_is_a_line() -> None:
    async with running(1) as it:
        it.api.log_refusal = ApiRefused(400, "BadRequest", "container is waiting to start: ContainerCreating")
        (page,) = await read(it)
        assert page.lines == ["[its output cannot be read now: container is waiting to start: ContainerCreating]"]
        reader = Reader(it)
        it.api.log_refusal = None
        it.api.write("v1-1", "a")
        assert await reader.lines(1) == ["v1-1 a"]
        await reader.pages.aclose()


async def test_a_replica_that_writes_nothing_is_no_error() -> None:
    async with running(1) as it:
        it.api.log_silences = 2 * pod_logs._FAILED_OFTEN
        it.api.write("v1-1", "a")
        reader = Reader(it)
        assert await reader.lines(1) == ["v1-1 a"]
        await reader.pages.aclose()


async def test_readers_have_a_bound_of_requests_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_logs, "MOST_FOLLOWED", 2)
    monkeypatch.setattr(pod_logs, "MOST_STREAMS", 2)
    async with running(3) as it:
        for replica_id in it.observed():
            it.api.write(replica_id, "a")
        reader = Reader(it, "v1")
        assert sorted(await reader.lines(3)) == [
            "v1-1 [not followed, as 2 replicas are: name this one]",
            "v1-2 a",
            "v1-3 a",
        ]
        (page,) = await read(it, "v1-1")
        assert page.lines == [
            "[its output cannot be read now: the controller reads 2 logs already: end another reader]"
        ]
        await reader.pages.aclose()
        (page,) = await read(it, "v1-1")
        assert page.lines == ["a"]


async def test_a_reader_that_is_slow_holds_a_bounded_number_of_pages() -> None:
    async with running(1) as it:
        reader = Reader(it)
        it.api.write("v1-1", "first")
        await reader.lines(1)
        it.api.write("v1-1", *(str(number) for number in range(100)))
        for _ in range(200):
            await asyncio.sleep(0)  # a turn of the loop, in which a page could be read
        assert it.api.lines_sent <= pod_logs.QUEUED_PAGES + 2  # the one that was read, and one that waits
        await reader.pages.aclose()
