"""Wakes an event loop once for many completions of gRPC's core, instead of once for each.

Purpose: a thread of `grpc.aio` puts completions into a queue, and writes a byte into a socket for each of them. The
event loop takes the whole queue when it is woken, and reads one byte: it is woken again for each of the others, to find
the queue empty. With many completions the bytes fill the socket (some 280 do), and from then on that thread waits until
the loop reads one: each turn of the loop lets a single completion pass. Here the loop reads most of the bytes if there
are many.
Invariants: a byte is written once its completion is in the queue, and the queue is emptied after the bytes were read.
The emptying fails at a completion for a closed loop: the bytes left in the socket wake the loop to continue. All this
depends on private parts of `grpc.aio`; if they change, only speed is lost.
Owner: the process, for all of its loops; `grpc.aio` makes the sockets with its first channel or server.
"""

from __future__ import annotations

import fcntl
import os
import socket
import sys
import termios
from typing import Any, Final

from grpc._cython import cygrpc  # type: ignore[attr-defined]

from slotmesh.grpc_internals import is_off

MANY: Final = 256
"""From this number of bytes in the socket on, most of them are read."""
LEFT: Final = 128
"""The number of bytes left in the socket; they mostly wake the loop for nothing."""
_BUFFER_BYTES: Final = 1024 * 1024
"""Asked for. The kernel gives what it allows: by default 400 KiB, for some 550 single bytes."""


class _ReadMost(socket.socket):
    """The end that the event loop reads, a byte at a time as it thinks, and so it is as long as they are few."""

    def recv(self, _count: int, _flags: int = 0, /) -> bytes:
        waiting = int.from_bytes(fcntl.ioctl(self, termios.FIONREAD, b"\0\0\0\0"), sys.byteorder)
        return super().recv(1 if waiting < MANY else waiting - LEFT)


class _Sockets:
    """What `grpc.aio` takes for the module of sockets."""

    @staticmethod
    def socketpair() -> tuple[socket.socket, socket.socket]:
        read, write = socket.socketpair()
        write.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
        return _ReadMost(read.family, read.type, read.proto, read.detach()), write

    def __getattr__(self, name: str) -> Any:
        return getattr(socket, name)


def keep_wakes_few() -> None:
    """From the next time on that `grpc.aio` begins in this process: with a first channel or server, or after the last.

    May be called again.
    """
    if not is_off() and os.name == "posix" and getattr(cygrpc, "socket", None) is socket:
        cygrpc.socket = _Sockets()
