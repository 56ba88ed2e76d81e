"""Pipes between a launcher and its child processes: children end with their launcher, and announce their address.

Purpose: the launcher holds the write end of a pipe and writes nothing; the kernel closes it when the launcher ends,
also
by SIGKILL, and each child reads the end of the file. A child writes its address to another pipe when it serves, so that
the launcher need not parse logs or guess free ports.
Invariants: the write end is never inherited; a child that does not stop within its grace period is ended.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable
from typing import Self

from slotmesh.logs import get_logger

_log = get_logger(__name__)

LAUNCHER_ENDED = "its launcher has ended"
"""The reason of a stop, for people."""
ORPHANED_EXIT_CODE = 3
"""Exit status of a child that lost its launcher and did not stop in time."""


class ParentPipe:
    """The launcher's side. One pipe serves any number of children; closing it stops all of them."""

    def __init__(self) -> None:
        self._read_end, self._write_end = os.pipe()  # neither is inherited, unless passed

    @property
    def fd(self) -> int:
        """The inherited descriptor: `--parent-fd {fd}`."""
        return self._read_end

    @property
    def pass_fds(self) -> tuple[int, ...]:
        """For `subprocess` and `asyncio.create_subprocess_exec`."""
        return (self._read_end,)

    def close(self) -> None:
        """Stops the children. May be called again."""
        for fd in (self._write_end, self._read_end):
            if fd >= 0:
                os.close(fd)
        self._read_end = self._write_end = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def watch_parent(
    fd: int, on_gone: Callable[[], object], *, grace_s: float = 10.0, hard_exit: Callable[[int], object] = os._exit
) -> threading.Thread:
    """The child's side: calls `on_gone` on the running loop when the launcher has ended.

    Ends the process `grace_s` later. Uses a thread, which works while a handler blocks the loop. Takes ownership of
    `fd`.
    """
    loop = asyncio.get_running_loop()

    def watch() -> None:
        try:
            while os.read(fd, 1):
                pass
        except OSError:
            pass  # an unreadable pipe counts as closed: no launcher holds the other end
        try:
            loop.call_soon_threadsafe(on_gone)
        except RuntimeError:
            return  # the loop has ended: the process is exiting
        _log.warning("the launcher is gone; stopping", grace_s=grace_s)
        time.sleep(grace_s)
        hard_exit(ORPHANED_EXIT_CODE)

    thread = threading.Thread(target=watch, name="watch-parent", daemon=True)
    thread.start()
    return thread


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
        """The inherited descriptor: `--announce-fd {fd}`."""
        return self._write_end

    @property
    def pass_fds(self) -> tuple[int, ...]:
        """For `subprocess` and `asyncio.create_subprocess_exec`."""
        return (self._write_end,)

    async def address(self) -> str | None:
        """Waits for the child's line; None if the child ended without one. Call it once, after the child started."""
        self._close_write_end()  # the child holds the only other copy, so that its end is the end of the file
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
        """Closes the descriptors. May be called again."""
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

    def __exit__(self, *_: object) -> None:
        self.close()


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
