"""Follows the file that one replica writes to, and rotates it.

Owner: the log book, on the event loop.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Final

from slotmesh.logs import get_logger

PIECE_BYTES: Final = 64 * 1024
"""Read in one turn at most."""
BEHIND_BYTES: Final = 1 << 20
"""A reader that is further behind than this skips to the newest piece."""
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


_log = get_logger(__name__)


class LogTail:
    """Follows the file that one replica writes to, in turns of a bounded piece each, and rotates it.

    The replica writes to the file itself, so that it never waits for a reader and loses nothing with one. It has the
    file open for appending for as long as it lives: so the file is rotated by copying it to `FILE.1` and cutting it to
    nothing, after which the replica writes on at its beginning. What is written between the last read and the cut, some
    microseconds, is lost. A file that is not followed is not rotated.
    """

    def __init__(self, path: Path, *, max_bytes: int, begin: int = 0) -> None:
        """`max_bytes`: the file is rotated beyond that. `begin`: where to begin to read."""
        self._path = path
        self._max_bytes = max_bytes
        self._rotated_at = max_bytes
        self._file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        self._offset = begin
        self._rotating: asyncio.Task[None] | None = None

    def read(self) -> bytes:
        """The next piece; empty where there is none. Raises OSError."""
        size = os.fstat(self._file).st_size
        if size < self._offset:
            self._offset = 0  # another program has cut it
        skipped = b""
        if size - self._offset > BEHIND_BYTES:
            left_out = size - PIECE_BYTES - self._offset
            self._offset += left_out
            skipped = f"[{left_out} bytes left out: they are in the file]\n".encode()
        piece = os.pread(self._file, PIECE_BYTES, self._offset)
        self._offset += len(piece)
        if size > self._rotated_at and self._rotating is None:
            self._rotating = asyncio.create_task(self._rotate(), name=f"rotate {self._path.name}")
        return skipped + piece

    async def _rotate(self) -> None:
        """Copies in a thread, then what came meanwhile, and cuts."""
        older = self._path.with_name(f"{self._path.name}.1")
        try:
            await asyncio.to_thread(_copy, self._path, older)
            if self._file >= 0:
                self._cut(older)
            self._rotated_at = self._max_bytes
        except OSError as error:
            self._rotated_at += self._max_bytes
            _log.warning("output of a replica cannot be rotated", path=str(self._path), error=str(error))
        finally:
            self._rotating = None

    def _cut(self, older: Path) -> None:
        """Without an await: little is written meanwhile."""
        with older.open("ab") as copy:
            while piece := os.pread(self._file, PIECE_BYTES, copy.tell()):
                copy.write(piece)
            end = copy.tell()
        os.ftruncate(self._file, 0)
        self._offset = max(0, self._offset - end)

    async def close(self) -> None:
        if self._rotating is not None:
            self._rotating.cancel()
            with suppress(asyncio.CancelledError, OSError):
                await self._rotating
        self.drop()

    def drop(self) -> None:
        """The file is not followed any more."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def _copy(path: Path, older: Path) -> None:
    """Into a file that only this user can read, from its first byte on."""
    older.unlink(missing_ok=True)
    with path.open("rb") as source, os.fdopen(os.open(older, _NEW, 0o600), "wb") as copy:
        shutil.copyfileobj(source, copy)
