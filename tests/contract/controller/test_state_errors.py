"""An error whose outcome is not known: what is in the file counts, be it that the change was written after all."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from controller_service.core.desired.state import ChangeSet, Desired
from controller_service.store.protocol import Conflict, StoreWriteFailed
from controller_service.store.sqlite.state_file import StateFile, read_file
from controller_service.store.sqlite.store_thread import SqliteStore
from slotmesh.spec.model import Backend
from tests.support.wait import wait_until

V1 = ChangeSet(put_backends=(Backend(name="v1"),))


class LateError:
    """A connection whose commits are written, and then fail, as a sync may."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def execute(self, statement: str, *parameters: Any) -> sqlite3.Cursor:
        cursor = self._connection.execute(statement, *parameters)
        if statement == "COMMIT":
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorcode = sqlite3.SQLITE_IOERR
            raise error
        return cursor

    def close(self) -> None:
        self._connection.close()


def break_next_commit(file: StateFile) -> None:
    assert file._connection is not None
    file._connection = LateError(file._connection)  # type: ignore[assignment]


def test_a_change_that_was_written_although_it_failed_is_found(tmp_path: Path) -> None:
    file = StateFile.open(tmp_path / "state", lambda: ("a" * 32, Desired()))
    before = file.desired
    break_next_commit(file)
    with pytest.raises(StoreWriteFailed, match="the disk reports an error") as failed:
        file.commit(V1, before.revision)
    assert not failed.value.is_unwritten
    with pytest.raises(Conflict) as conflict:
        file.commit(V1, before.revision)
    assert conflict.value.actual_revision == before.revision + 1
    assert file.desired == before.apply(V1)
    after = file.commit(ChangeSet(), file.desired.revision)
    assert read_file(file.path)[1] == after
    file.close()


@pytest.mark.asyncio
async def test_readers_and_watchers_hear_of_it(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "state", lambda: ("a" * 32, Desired()))
    before = store.read()
    break_next_commit(store._file)
    with pytest.raises(StoreWriteFailed):
        await store.commit(V1, expected_revision=before.revision)
    assert store.read() is before
    with pytest.raises(Conflict):
        await store.commit(V1, expected_revision=before.revision)
    await wait_until(lambda: store.read() == before.apply(V1), what="what is in the file")
    watching = store.watch(after_revision=before.revision)
    assert await anext(watching) == before.apply(V1)
    await watching.aclose()
    await store.close()
