"""Brings the tables of an older state file to the newest version: forward only, after a backup.

Invariants: a step is one transaction with its version, so that a file has one version or the next; the backup is whole
before the first step begins, and is a state file itself.
"""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

from controller_service.store.sqlite.private_files import create_private
from controller_service.store.sqlite.refusals import StateRefused
from controller_service.store.sqlite.schema import MIGRATIONS, VERSION, Migrations


def migrate(
    connection: sqlite3.Connection, path: Path, *, to: int = VERSION, migrations: Migrations = MIGRATIONS
) -> Path | None:
    """Returns where the backup is, if there was anything to do. Raises StateRefused for a newer version."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version == to:
        return None
    if version > to:
        raise StateRefused(
            f"{path}: was written by a newer slotmesh (schema {version}; this version knows {to}). Nothing was changed."
            f" Use the newer version again, or go back to {backup_path(path, to)} if there is one: what changed since"
            " is not in there"
        )
    if version < 1 or any(each not in migrations for each in range(version, to)):
        raise StateRefused(f"{path}: has schema {version}, which this version of slotmesh cannot bring to {to}")
    backup = back_up(connection, backup_path(path, version))
    for each in range(version, to):
        connection.execute("BEGIN IMMEDIATE")
        try:
            for statement in migrations[each]:
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {each + 1}")
            connection.execute("COMMIT")
        except BaseException:
            connection.execute("ROLLBACK")
            raise
    return backup


def backup_path(path: Path, version: int) -> Path:
    return path.with_name(f"{path.name}.backup-v{version}")


def back_up(connection: sqlite3.Connection, backup: Path) -> Path:
    """A copy of the database, which is there as a whole or not at all."""
    unfinished = backup.with_name(f"{backup.name}.unfinished")
    unfinished.unlink(missing_ok=True)
    create_private(unfinished)
    copy = sqlite3.connect(unfinished, isolation_level=None)
    try:
        connection.backup(copy)
        copy.execute("PRAGMA journal_mode = DELETE")
    finally:
        copy.close()
    unfinished.replace(backup)
    sync_directory(backup.parent)
    return backup


def sync_directory(folder: Path) -> None:
    """What was created or renamed in it is there after a power failure, too."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
