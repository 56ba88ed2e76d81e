"""How an event loop hears of what gRPC's core has completed: once for all that has, and not once for each.

Purpose: a thread of `grpc.aio` puts completions into a queue, and writes a byte into a socket for each of them. The
event loop takes the whole queue when it is woken, and reads one byte: it is woken again for each of the others, to find
the queue empty. Where many complete, the bytes fill the socket (some 280 do), and from then on that thread waits for
the loop to read one: a single completion passes in a turn of the loop, whosever it is. Here the bytes are in a pipe,
which holds 65,536 of them, and all are read.
Invariants: a byte is written when its completion is in the queue, which is emptied after the bytes were read, so that
nothing is left lying. This is done by the inside of `grpc.aio`, which may change: then nothing but time is lost.
Owner: the process, for all of its loops; `grpc.aio` makes the pipe with its first channel or server.
"""

from __future__ import annotations

import os
import socket
from typing import Any, Final

from grpc._cython import cygrpc  # type: ignore[attr-defined]

_ALL: Final = 65_536
"""What a pipe holds."""


class _End:
    """One end of the pipe, by the names that a socket has for what is done with it."""

    _close: Final = staticmethod(os.close)  # there may be no module any more when the process ends

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def fileno(self) -> int:
        return self._descriptor

    def setblocking(self, flag: bool) -> None:
        os.set_blocking(self._descriptor, flag)

    def recv(self, _count: int) -> bytes:
        """All bytes that there are. Raises BlockingIOError where there are none."""
        return os.read(self._descriptor, _ALL)

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            self._close(descriptor)

    def __del__(self) -> None:
        self.close()


class _Sockets:
    """What `grpc.aio` takes for the module of sockets."""

    @staticmethod
    def socketpair() -> tuple[_End, _End]:
        read, write = os.pipe()
        return _End(read), _End(write)

    def __getattr__(self, name: str) -> Any:
        return getattr(socket, name)


def wake_once_for_all() -> None:
    """From the next time on that `grpc.aio` begins in this process: with a first channel or server, or after the last.

    May be called again.
    """
    if os.name == "posix" and getattr(cygrpc, "socket", None) is socket:
        cygrpc.socket = _Sockets()
