"""The tables of a state file, their version, and how older ones become newer.

Purpose: what a file is (`application_id`), which version its tables have (`user_version`), and what each version is.
Invariants: versions only go up, one step at a time; a step never reads code that may change later. A row is a JSON
document with a checksum, so that a new field needs no new version; a version is due when older programs could misread.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

APPLICATION_ID: Final = 0x534C4D48
"""`SLMH`, at offset 68 of the file: what tells it from the databases of others."""
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
"""The tables of the newest version. `term` counts the starts of controllers that may write."""

Migrations: TypeAlias = Mapping[int, Sequence[str]]
"""By version: the statements that make it the next one."""
MIGRATIONS: Final[Migrations] = {}


def checksum_of(*parts: object) -> int:
    """Of a row: a page that was written badly is seen by it, as SQLite's own files have no checksums."""
    return zlib.crc32("\0".join(map(str, parts)).encode())
