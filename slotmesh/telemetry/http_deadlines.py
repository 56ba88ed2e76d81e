"""Deadlines of HTTP connections: whoever has a connection open for too long loses it, however busy it looks.

Invariants: the time is that of all reads and writes together, so that a byte now and then puts nothing off.
Owner: the HTTP server, whose thread looks; connections come and go in threads of their own.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress


class Deadline:
    """Of one connection."""

    def __init__(self, connection: socket.socket, at: float, now: Callable[[], float]) -> None:
        """`connection`: to be shut at that time, of the clock `now`, unless it is moved."""
        self.connection = connection
        self.at = at
        self._now = now

    def move(self, seconds: float) -> None:
        """From now on it has so long."""
        self.at = self._now() + seconds


class Deadlines:
    """Of all connections of a server."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        """`now`: seconds of a clock that never goes back."""
        self._now = now
        self._lock = threading.Lock()
        self._open: set[Deadline] = set()

    @contextmanager
    def held(self, connection: socket.socket, seconds: float) -> Iterator[Deadline]:
        """The connection has so long, while the block lasts. Raises OSError."""
        # A descriptor of our own: TLS takes that of the connection, which may be closed and given to another one.
        with connection.dup() as own:
            deadline = Deadline(own, self._now() + seconds, self._now)
            with self._lock:
                self._open.add(deadline)
            try:
                yield deadline
            finally:
                with self._lock:
                    self._open.discard(deadline)

    def look(self) -> None:
        """Shuts the connections whose time is over: whoever waits for one goes on, with an error."""
        now = self._now()
        with self._lock:
            for each in self._open:
                if each.at <= now:
                    with suppress(OSError):  # the peer has left
                        each.connection.shutdown(socket.SHUT_RDWR)
