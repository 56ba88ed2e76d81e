"""The output of replicas that are pods, for `slotmesh logs`: read from the API server on request.

Invariants: of a pod that has ended the newest lines are kept in the log book, if they could be read before it was
deleted. A reader has one request for each replica at most, and a bounded queue of pages: a slow reader slows the API
server down, and misses nothing. A request that breaks is repeated after the last line that arrived, while the pod
exists. A missing right ends a reader with an error; any other refusal is a line between brackets.
Owner: the event loop; the launcher reports which pods there are.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import aclosing, contextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

from controller_service.core.pods.log_lines import StampedLines
from controller_service.shell.launchers.kubernetes.api import ApiAway, ApiRefused, LogSilent, PodApi
from controller_service.shell.replica_logs import LogBook, LogLines, LogPage, RunningLogs
from slotmesh.errors import Failure, Reason
from slotmesh.logs import get_logger
from slotmesh.runtime.backoff import Backoff
from slotmesh.status import to_exception

MOST_LINES: Final = 4_096
"""Of one replica, before those that are followed: the log book keeps no more."""
MOST_FOLLOWED: Final = 32
"""Replicas that one reader follows."""
MOST_STREAMS: Final = 64
"""Of all readers: there are 100 connections to the API server, and the launcher needs some."""
_READ_AT_ONCE: Final = 8
QUEUED_PAGES: Final = 16
_FAILED_OFTEN: Final = 5
"""Attempts in a row that fail before a reader learns of it."""
_LONGEST_RETRY_S: Final = 3.0

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class LoggedPod:
    """A pod whose log can be read."""

    backend: str
    name: str
    container: str
    """Empty: its only one."""
    has_ended: bool = False
    """It is deleted once its last lines were read."""


class PodLogs(RunningLogs):
    """Reads logs of pods."""

    def __init__(self, api: PodApi, pods: Callable[[], Mapping[str, LoggedPod]], book: LogBook) -> None:
        """`pods`: those that there are, by replica id, oldest first. `book` gets the last lines of each."""
        self._api = api
        self._pods = pods
        self._book = book
        self._streams = 0
        self._changed = asyncio.Event()
        """Replaced whenever there are other pods."""
        self._last_reads = asyncio.Semaphore(_READ_AT_ONCE)
        self._is_refused = False

    def changed(self) -> None:
        """There are other pods."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def keep(self, replica_id: str, pod: LoggedPod) -> None:
        """Keeps the last lines of a pod that has ended."""
        try:
            async with self._last_reads:
                lines = await self._read(pod, MOST_LINES)
        except ApiAway:
            return
        except ApiRefused as refused:
            if _is_forbidden(refused) and not self._is_refused:
                self._is_refused = True
                _log.warning("output of replicas that have ended is not kept", reason=_forbidden(refused).message)
            return
        self._book.keep(replica_id, pod.backend, lines)

    def replicas(self) -> Mapping[str, str]:
        return {replica_id: pod.backend for replica_id, pod in self._pods().items()}

    async def read(self, name: str, *, count: int) -> AsyncGenerator[LogPage, None]:
        named = [*self._named(name).items()]
        for at in range(0, len(named), _READ_AT_ONCE):
            pages = await asyncio.gather(*(self._page(*it, count) for it in named[at : at + _READ_AT_ONCE]))
            for page in pages:
                yield page

    async def follow(self, name: str, *, count: int) -> AsyncGenerator[LogPage, None]:
        pages: asyncio.Queue[LogPage | Exception] = asyncio.Queue(QUEUED_PAGES)
        following = asyncio.create_task(self._follow_named(name, count, pages), name=f"logs-{name}")
        try:
            while True:
                page = await pages.get()
                if isinstance(page, Exception):
                    raise page
                if page.lines:
                    yield page
                elif page.replica_id == name:
                    return
        finally:
            following.cancel()
            with suppress(asyncio.CancelledError):
                await following

    def _named(self, name: str) -> dict[str, LoggedPod]:
        """A replica; or those of a backend, the newest ones first."""
        pods = self._pods()
        if name in pods:
            return {name: pods[name]}
        return {it: pods[it] for it in reversed([*pods]) if pods[it].backend == name}

    async def _page(self, replica_id: str, pod: LoggedPod, count: int) -> LogPage:
        try:
            with self._stream():
                return LogPage(replica_id, (await self._read(pod, count)).tail(count))
        except (ApiAway, ApiRefused) as error:
            return LogPage(replica_id, [_unread(error)])

    async def _read(self, pod: LoggedPod, count: int) -> LogLines:
        """Raises ApiAway, ApiRefused."""
        stamped, kept = StampedLines(), LogLines()
        async with aclosing(self._api.log(pod.name, pod.container, lines=min(count, MOST_LINES))) as pieces:
            async for piece in pieces:
                for line in stamped.feed(piece):
                    kept.feed(line + b"\n")
        for line in stamped.end():
            kept.feed(line + b"\n")
        return kept

    async def _follow_named(self, name: str, count: int, pages: asyncio.Queue[LogPage | Exception]) -> None:
        """Also replicas that are started later, with all of their lines. Until cancelled."""
        tasks: dict[str, asyncio.Task[None] | None] = {}
        try:
            while True:
                changed = self._changed
                for replica_id, pod in self._named(name).items():
                    if replica_id in tasks:
                        continue
                    if sum(it is not None and not it.done() for it in tasks.values()) < MOST_FOLLOWED:
                        one = self._follow_one(replica_id, pod, count, pages)
                        tasks[replica_id] = asyncio.create_task(one, name=f"log-{replica_id}")
                    else:
                        tasks[replica_id] = None
                        text = f"[not followed, as {MOST_FOLLOWED} replicas are: name this one]"
                        await pages.put(LogPage(replica_id, [text]))
                count = MOST_LINES
                await changed.wait()
                left = self._pods()
                tasks = {it: task for it, task in tasks.items() if it in left or (task and not task.done())}
        finally:
            running = [it for it in tasks.values() if it is not None]
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def _follow_one(
        self, replica_id: str, pod: LoggedPod, count: int, pages: asyncio.Queue[LogPage | Exception]
    ) -> None:
        """Until the pod is gone, or was read to its end: then with a page that has no lines."""
        stamped, failures = StampedLines(), 0
        backoff = Backoff(initial_s=0.2, max_s=_LONGEST_RETRY_S)
        while True:
            is_whole = False
            lines = None if stamped.since else min(count, MOST_LINES)
            try:
                with self._stream():
                    log = self._api.log(pod.name, pod.container, lines=lines, since=stamped.since, follow=True)
                    async with aclosing(log) as pieces:
                        async for piece in pieces:
                            failures = 0
                            if found := stamped.feed(piece):
                                backoff.reset()
                                await pages.put(_page_of(replica_id, found))
                    is_whole = True
            except LogSilent:
                backoff.reset()
            except (ApiAway, ApiRefused) as error:
                if isinstance(error, ApiRefused) and _is_forbidden(error):
                    await pages.put(to_exception(_forbidden(error)))
                    return
                failures += 1
                if failures == _FAILED_OFTEN:
                    await pages.put(LogPage(replica_id, [_unread(error)]))
            if (left := self._pods().get(replica_id)) is not None and not (is_whole and left.has_ended):
                await self._changed_within(backoff.next_delay_s())
                left = self._pods().get(replica_id)
            if left is None or (is_whole and left.has_ended):
                break
            stamped.resume()
        if rest := stamped.end():
            await pages.put(_page_of(replica_id, rest))
        await pages.put(LogPage(replica_id, []))

    async def _changed_within(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._changed.wait()

    @contextmanager
    def _stream(self) -> Iterator[None]:
        """Raises ApiRefused."""
        if self._streams >= MOST_STREAMS:
            text = f"the controller reads {MOST_STREAMS} logs already: end another reader"
            raise ApiRefused(HTTPStatus.TOO_MANY_REQUESTS, "TooManyRequests", text)
        self._streams += 1
        try:
            yield
        finally:
            self._streams -= 1


def _page_of(replica_id: str, lines: list[bytes]) -> LogPage:
    return LogPage(replica_id, [it.decode(errors="replace").rstrip("\r") for it in lines])


def _is_forbidden(refused: ApiRefused) -> bool:
    return refused.code in {HTTPStatus.FORBIDDEN, HTTPStatus.UNAUTHORIZED}


def _forbidden(refused: ApiRefused) -> Failure:
    text = (
        f"Kubernetes does not let the controller read logs of pods ({refused.code}: {refused}): the Role of its service"
        " account needs the verb `get` of the resource `pods/log`"
    )
    return Failure(reason=Reason.PERMISSION_DENIED, message=text)


def _unread(error: ApiAway | ApiRefused) -> str:
    """What a reader gets in place of lines. Raises PermissionDenied for a missing right."""
    if isinstance(error, ApiRefused) and _is_forbidden(error):
        raise to_exception(_forbidden(error)) from error
    return f"[its output cannot be read now: {error}]"
