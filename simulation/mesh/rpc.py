"""What one rpc is on the wire: who hears what of whom, and how much may be on its way.

Invariants: each direction has a window of unread bytes, as HTTP/2 has; a message that does not fit waits at its sender,
and so does whoever writes it. Frames of one rpc arrive in the order in which they were sent.
"""

from __future__ import annotations

import asyncio
import types
from collections import deque
from collections.abc import Callable, Generator
from typing import Any, Final

from simulation.mesh.network import SimulatedPipe

WINDOW_BYTES: Final = 1_500_000
"""What may be unread: the look-ahead of a stream, and a half more."""
UPDATE_BYTES: Final = WINDOW_BYTES // 4
"""What is read before the sender hears of it."""
FRAME_BYTES: Final = 48
"""What a frame takes beside its message."""


@types.coroutine
def _next_turn() -> Generator[None, None, None]:
    """As `asyncio.sleep(0)`."""
    yield


class SendingHalf:
    """The sending half of one direction."""

    def __init__(self, loop: asyncio.AbstractEventLoop, pipe: SimulatedPipe, arrive: Callable[[bytes], None]) -> None:
        """`arrive` is called with each message in the process at the other end."""
        self._loop = loop
        self._pipe = pipe
        self._arrive = arrive
        self._unread = 0
        self._waiting: deque[tuple[bytes, asyncio.Future[None]]] = deque()
        self.is_broken = False

    async def send(self, message: bytes) -> bool:
        """Returns when the message has left, False where the rpc has ended before."""
        if self.is_broken:
            return False
        if self._waiting or not self._has_room(message):
            left: asyncio.Future[None] = self._loop.create_future()
            self._waiting.append((message, left))
            try:
                await left
            except asyncio.CancelledError:
                self._waiting = deque(each for each in self._waiting if each[1] is not left)
                raise
            return not self.is_broken
        self._put(message)
        await _next_turn()
        return True

    def read(self, count: int) -> None:
        """The other side has read so many bytes."""
        self._unread -= count
        while self._waiting and self._has_room(self._waiting[0][0]):
            message, left = self._waiting.popleft()
            self._put(message)
            if not left.done():
                left.set_result(None)

    def fail(self) -> None:
        """The rpc has ended: nothing leaves any more."""
        self.is_broken = True
        for _, left in self._waiting:
            if not left.done():
                left.set_result(None)
        self._waiting.clear()

    def _has_room(self, message: bytes) -> bool:
        """Of messages larger than the window one at a time."""
        return self._unread <= UPDATE_BYTES or self._unread + len(message) <= WINDOW_BYTES

    def _put(self, message: bytes) -> None:
        self._unread += len(message)
        self._pipe.send(FRAME_BYTES + len(message), self._arrive, message)


class Inbox:
    """The receiving half: messages, then an end."""

    def __init__(self, loop: asyncio.AbstractEventLoop, on_read: Callable[[int], None]) -> None:
        """`on_read` hears now and then how many bytes were taken since it last heard."""
        self._loop = loop
        self._on_read = on_read
        self._messages: deque[bytes] = deque()
        self._reader: asyncio.Future[None] | None = None
        self._taken = 0
        self._is_ended = False
        self.on_empty: Callable[[], object] = lambda: None
        """Called once, when all was read and no more comes."""

    def put(self, message: bytes) -> None:
        if not self._is_ended:
            self._messages.append(message)
            self._wake()

    def end(self, *, drop: bool) -> None:
        """No more comes. `drop`: what is not read yet is lost."""
        if drop:
            self._messages.clear()
        self._is_ended = True
        self._wake()
        self._look()

    async def get(self) -> bytes | None:
        """The next message; None at the end."""
        while not self._messages:
            if self._is_ended:
                return None
            self._reader = self._loop.create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        message = self._messages.popleft()
        self._taken += len(message)
        if self._taken >= UPDATE_BYTES:
            self._on_read(self._taken)
            self._taken = 0
        self._look()
        return message

    def _look(self) -> None:
        if self._is_ended and not self._messages:
            happen, self.on_empty = self.on_empty, lambda: None
            happen()

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)


Metadata = tuple[tuple[str, Any], ...]
