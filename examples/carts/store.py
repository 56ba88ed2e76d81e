"""Carts in SQLite: each change is a compare-and-set, under the fencing token of the replica that makes it.

Invariants: a change is based on the cart that is stored, or is refused; a replica that has lost a cart's key changes
the cart no more once a later owner has; a request is applied once, however often it is made.
One store for each process; safe for threads.
"""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

_BUSY_S = 30.0
"""How long a change waits for those of other processes."""
_SCHEMA = """
CREATE TABLE IF NOT EXISTS carts (
    user TEXT PRIMARY KEY, items TEXT NOT NULL, version INTEGER NOT NULL, owner_epoch INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS requests (id TEXT PRIMARY KEY);
"""


class ConflictError(Exception):
    """The cart was changed by another replica since it was read, or by a later owner of its key."""


@dataclass(frozen=True, slots=True)
class Cart:
    """What is stored for a user."""

    items: list[str] = field(default_factory=list)
    version: int = 0
    """Counts the changes. 0: nothing is stored."""


class CartStore:
    """The carts of one database file, which several processes use."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._of_thread = threading.local()
        database = self._connection()
        database.execute("PRAGMA journal_mode=WAL")
        database.executescript(_SCHEMA)

    def read(self, user: str) -> Cart:
        """The newest cart of a user."""
        row = self._connection().execute("SELECT items, version FROM carts WHERE user = ?", (user,)).fetchone()
        return Cart() if row is None else Cart(json.loads(row[0]), row[1])

    def put(self, user: str, item: str, *, seen: Cart, owner_epoch: int, request_id: str) -> Cart:
        """Adds an item to the cart that was `seen`, and returns the new one. A repeated request changes nothing.

        Raises:
            ConflictError: another cart is stored than was seen, or a later owner of the key has stored it.
        """
        new = Cart([*seen.items, item], seen.version + 1)
        with self._change() as database:
            if database.execute("SELECT 1 FROM requests WHERE id = ?", (request_id,)).fetchone():
                return self.read(user)
            if not seen.version:
                database.execute("INSERT OR IGNORE INTO carts VALUES (?, '[]', 0, ?)", (user, owner_epoch))
            changed = database.execute(
                "UPDATE carts SET items = ?, version = ?, owner_epoch = ?"
                " WHERE user = ? AND version = ? AND owner_epoch <= ?",
                (json.dumps(new.items), new.version, owner_epoch, user, seen.version, owner_epoch),
            )
            if not changed.rowcount:
                raise ConflictError(f"the cart of {user!r} is not at version {seen.version} any more")
            database.execute("INSERT INTO requests VALUES (?)", (request_id,))
        return new

    def close(self) -> None:
        """Closes the connection of the thread that calls it. Those of other threads end with them."""
        if (connection := getattr(self._of_thread, "connection", None)) is not None:
            connection.close()
            del self._of_thread.connection

    @contextmanager
    def _change(self) -> Iterator[sqlite3.Connection]:
        """One transaction, which no other one overlaps."""
        database = self._connection()
        database.execute("BEGIN IMMEDIATE")
        try:
            yield database
        except BaseException:
            database.execute("ROLLBACK")
            raise
        database.execute("COMMIT")

    def _connection(self) -> sqlite3.Connection:
        connection: sqlite3.Connection | None = getattr(self._of_thread, "connection", None)
        if connection is None:
            connection = sqlite3.connect(self._file, timeout=_BUSY_S, isolation_level=None)
            connection.execute("PRAGMA synchronous=NORMAL")
            self._of_thread.connection = connection
        return connection
