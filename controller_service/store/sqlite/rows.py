"""The tables of a state file, their version, and their rows (`store.rows`) in SQL.

Invariants: a file is identified by `application_id`, the version of its tables by `user_version`.
"""

from __future__ import annotations

import json
import sqlite3
from typing import Final

from controller_service.core.desired.state import Desired
from controller_service.store.rows import DamagedRows, Head, Row, changed_rows, checksum_of

APPLICATION_ID: Final = 0x534C4D48
"""`SLMH`, at offset 68 of the file: it distinguishes the file from other programs' databases."""
VERSION: Final = 1

CREATE: Final = (
    """CREATE TABLE head (
        id INTEGER PRIMARY KEY CHECK (id = 1),
        generation TEXT NOT NULL,
        revision INTEGER NOT NULL,
        configured_at INTEGER NOT NULL,
        epoch_floor INTEGER NOT NULL,
        term INTEGER NOT NULL,
        checksum INTEGER NOT NULL
    )""",
    """CREATE TABLE resources (
        kind TEXT NOT NULL,
        name TEXT NOT NULL,
        document TEXT NOT NULL,
        checksum INTEGER NOT NULL,
        PRIMARY KEY (kind, name)
    ) WITHOUT ROWID""",
)
"""The tables. `term` counts the starts of controllers that may write."""


def read_head(connection: sqlite3.Connection) -> Head:
    """Raises DamagedRows."""
    rows = connection.execute(
        "SELECT generation, revision, configured_at, epoch_floor, term, checksum FROM head"
    ).fetchall()
    if len(rows) != 1:
        raise DamagedRows(f"the head has {len(rows)} rows")
    head = Head(*rows[0][:5])
    if head.checksum != rows[0][5]:
        raise DamagedRows("the checksum of the head is wrong")
    return head


def read_rows(connection: sqlite3.Connection) -> list[Row]:
    """All but the head."""
    return connection.execute("SELECT kind, name, document, checksum FROM resources").fetchall()


def write_changes(connection: sqlite3.Connection, before: Desired, after: Desired) -> None:
    """Puts and deletes rows; the head is not among them."""
    for kind, name, document in changed_rows(before, after):
        if document is None:
            connection.execute("DELETE FROM resources WHERE kind = ? AND name = ?", (kind, name))
            continue
        text = json.dumps(document, separators=(",", ":"))
        connection.execute(
            "INSERT OR REPLACE INTO resources (kind, name, document, checksum) VALUES (?, ?, ?, ?)",
            (kind, name, text, checksum_of(kind, name, text)),
        )
