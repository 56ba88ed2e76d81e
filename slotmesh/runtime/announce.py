"""Announces the port to a launcher: one line `HOST:PORT` on an inherited descriptor, once the process serves.

So a launcher need not poll logs or guess free ports.
"""

from __future__ import annotations

import asyncio
import os
from types import TracebackType
from typing import Self


def announce(fd: int, address: str) -> None:
    """The child's side: writes the line and closes `fd`. A launcher that has ended already is no error."""
    try:
        os.write(fd, f"{address}\n".encode())
    except BrokenPipeError:
        pass
    finally:
        os.close(fd)


class AnnouncePipe:
    """The launcher's side, for one child: start it with `pass_fds` and `--announce-fd {fd}`, then await `address()`."""

    def __init__(self) -> None:
        self._read_end, self._write_end = os.pipe()
        os.set_blocking(self._read_end, False)

    @property
    def fd(self) -> int:
        """What the child inherits: `--announce-fd {fd}`."""
        return self._write_end

    @property
    def pass_fds(self) -> tuple[int, ...]:
        """For `subprocess` and `asyncio.create_subprocess_exec`."""
        return (self._write_end,)

    async def address(self) -> str | None:
        """Waits for the child's line; None when the child ended without one. Call it once, after the child started."""
        self._close_write_end()  # the child has its own: now its end is the end of the file
        loop = asyncio.get_running_loop()
        line = b""
        while not line.endswith(b"\n"):
            readable: asyncio.Future[None] = loop.create_future()
            loop.add_reader(self._read_end, _resolve, readable)
            try:
                await readable
            finally:
                loop.remove_reader(self._read_end)
            if not (part := os.read(self._read_end, 4096)):
                return None
            line += part
        return line.decode().strip()

    def close(self) -> None:
        """Gives the descriptors back. May be called again."""
        self._close_write_end()
        if self._read_end >= 0:
            os.close(self._read_end)
            self._read_end = -1

    def _close_write_end(self) -> None:
        if self._write_end >= 0:
            os.close(self._write_end)
            self._write_end = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
