"""A store in one SQLite file, for the event loop.

Invariants: one thread opens, reads and writes the file, and nothing else does; the event loop never waits for a disk;
`read` returns what is in the file, and stays there when the power fails.
Owner: the event loop that it was opened on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

from controller_service.core.desired.revisions import UNKNOWN_ORIGIN, ChangeOrigin
from controller_service.core.desired.state import ChangeSet, Desired
from controller_service.store.protocol import UNKNOWN_LEADER, Conflict, Leader, StateInUse, Store, StoreWriteFailed
from controller_service.store.sqlite.events import SqliteEvents, events_path
from controller_service.store.sqlite.state_file import StateFile
from controller_service.store.sqlite.state_lock import StandbyNote

TRY_S: Final = 0.25
"""How often a standby tries to lead."""

MakeState: TypeAlias = Callable[[], tuple[str, Desired]]


class SqliteStore(Store):
    """The store in a file."""

    def __init__(self, file: StateFile, writer: ThreadPoolExecutor) -> None:
        events = SqliteEvents(events_path(file.path), f"{file.generation}/{file.term}")
        super().__init__(file.generation, file.term, file.desired, events)
        self._file = file
        self._writer = writer
        self._loop = asyncio.get_running_loop()

    @classmethod
    async def open(cls, path: Path, make_state: MakeState | None) -> SqliteStore:
        """`make_state` gives generation and state of a file that is not there yet; None: it has to be there.

        Raises StateRefused.
        """
        writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="store")
        opening = writer.submit(StateFile.open, path, make_state)
        try:
            return cls(await asyncio.wrap_future(opening), writer)
        except BaseException:
            writer.submit(_let_go, opening)
            writer.shutdown(wait=False)
            raise

    async def _check(self) -> tuple[Sequence[str], str]:
        waiting = await asyncio.wrap_future(self._writer.submit(self._file.check))
        return waiting, await asyncio.wrap_future(self._writer.submit(self._file.probe))

    async def commit(self, change: ChangeSet, *, expected_revision: int) -> Desired:
        if self._is_closed:
            raise RuntimeError("the store is closed")
        writing = self._writer.submit(self._file.commit, change, expected_revision)
        # Before the commit returns, and also if its caller was cancelled.
        writing.add_done_callback(partial(self._written, change.origin))
        return await asyncio.wrap_future(writing)

    async def begin_generation(self, generation: str, desired: Desired, *, expected_revision: int) -> None:
        writing = self._writer.submit(self._file.begin_generation, generation, desired, expected_revision)
        writing.add_done_callback(self._refused)
        await asyncio.wrap_future(writing)
        self._check_due.set()

    def serving_at(self, address: str) -> None:
        if not self._is_closed:
            self._writer.submit(self._file.serving_at, address)

    async def close(self) -> None:
        if self._is_closed:
            return
        self._end()
        await self.events.close()
        closing = self._writer.submit(self._file.close)
        self._writer.shutdown(wait=False)
        await asyncio.wrap_future(closing)

    def _written(self, origin: ChangeOrigin, writing: Future[Desired]) -> None:
        """In the store's thread: `writing` has ended."""
        if writing.cancelled():
            return
        if writing.exception() is None:
            with suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._take, writing.result(), origin)
        else:
            self._refused(writing)

    def _refused(self, writing: Future[Any]) -> None:
        """In the store's thread: `writing` has ended, maybe with an error."""
        error = None if writing.cancelled() else writing.exception()
        with suppress(RuntimeError):  # the loop has ended
            if isinstance(error, Conflict):
                # It may be with what was written before an error hid it.
                self._loop.call_soon_threadsafe(self._take, self._file.desired, UNKNOWN_ORIGIN)
            elif isinstance(error, StoreWriteFailed):
                self._loop.call_soon_threadsafe(self._check_due.set)

    def _take(self, desired: Desired, origin: ChangeOrigin) -> None:
        if desired.revision > self._desired.revision:
            self._set(desired, origin)


class SqliteCandidacy:
    """Implements `Candidacy`: a lock beside the file, which the kernel lets go of when the leader's process ends."""

    def __init__(self, path: Path, make_state: MakeState) -> None:
        """`make_state` gives generation and state of a file that is not there yet."""
        self._path = path.resolve()
        self._make_state = make_state
        self._leader = UNKNOWN_LEADER

    @property
    def leader(self) -> Leader:
        return self._leader

    async def try_to_lead(self) -> SqliteStore | None:
        return await self._try(self._make_state)

    async def wait_to_lead(self, address: str) -> SqliteStore:
        note = await asyncio.to_thread(StandbyNote.write, self._path, address)
        try:
            # A file that was there and is gone is no reason to begin an empty one.
            while (store := await self._try(None)) is None:  # noqa: ASYNC110 - no event comes of a lock of another process
                await asyncio.sleep(TRY_S)
            return store
        finally:
            note.remove()

    async def _try(self, make_state: MakeState | None) -> SqliteStore | None:
        try:
            return await SqliteStore.open(self._path, make_state)
        except StateInUse as refusal:
            self._leader = refusal.leader
            return None


def _let_go(opening: Future[StateFile]) -> None:
    """In the store's thread: closes the file if its opening was cancelled meanwhile."""
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()
