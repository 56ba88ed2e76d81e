"""A map of a thread: its iterables are read and encoded there, as the client has room for its calls.

Invariants: what the iterables raise before a call was made is raised; what they raise later is the map's outcome, after
all calls that were made have ended. A thread that gives up waiting for room, because of its timeout or Ctrl-C, has no
place. No thread waits with the buffer's lock.
Owner: the thread that makes the map; the methods that are a `Start` run in the client's thread.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from time import monotonic
from typing import TYPE_CHECKING, Any

from slotmesh.client.calls.buffer import BufferShare
from slotmesh.client.calls.maps import Gather, Piece, first_pieces
from slotmesh.client.method import Method
from slotmesh.client.sync.call_future import CUT_OFF, PIECE_S, CallFuture, Start
from slotmesh.status import to_exception

if TYPE_CHECKING:
    from slotmesh.client.sync.client_thread import ClientThread


class WaitingThread:
    """A thread that waits for room in the client's buffer."""

    def __init__(self, share: BufferShare, nbytes: int) -> None:
        """`nbytes`: the bytes of the call that needs a place."""
        self._share = share
        self._nbytes = nbytes
        self._arrived = threading.Event()

    def wait(self, until: float) -> bool:
        """Takes a place once there is room. False if there is none until then, in seconds of the monotonic clock."""
        share = self._share
        with share.buffer.lock:
            if share.try_take(1, self._nbytes):
                return True
            share.buffer.wait(share, self._nbytes, self._wake)
        try:
            while (left_s := until - monotonic()) > 0:
                if self._arrived.wait(min(PIECE_S, left_s)):
                    return True
        except BaseException:
            if self._give_up():
                share.give(1, self._nbytes)
            raise
        return self._give_up()

    def _give_up(self) -> bool:
        """Whether the place was granted nevertheless."""
        buffer = self._share.buffer
        with buffer.lock:
            buffer.leave(self._share, self._nbytes, self._wake)
        return self._arrived.is_set()

    def _wake(self) -> bool:
        self._arrived.set()
        return True


def wait_for_place(share: BufferShare, nbytes: int, until: float) -> bool:
    """As `WaitingThread.wait`."""
    return WaitingThread(share, nbytes).wait(until)


class ThreadMap:
    """Makes the calls of one map."""

    def __init__(self, thread: ClientThread, method: Method[Any], *, keeps_failures: bool) -> None:
        self._thread = thread
        self._method = method
        self._keeps_failures = keeps_failures
        self._gather: Gather
        self.future: CallFuture[Any] = CallFuture(thread)
        """Has the results."""

    def make(self, pieces: Iterator[Piece], until: float) -> None:
        """Makes all calls, as there is room for them.

        Raises:
            RuntimeError: the mesh is closed, or belongs to another process.
            TimeoutError: there was no room until then, in seconds of the monotonic clock.
        """
        share = self._method.share
        payloads, nbytes, has_room = first_pieces(pieces, share)
        if has_room and share.take(len(payloads), nbytes):
            self._hand_over(self.future, self._make_whole, payloads)
            return
        self._thread.hand_over(self.future, self._begin, None)
        error: Exception | None = None
        while payloads and not self.future.done():
            if not wait_for_place(share, len(payloads[0]), until):
                raise TimeoutError
            count = 1
            while count < len(payloads) and share.take(1, len(payloads[count])):
                count += 1
            self._hand_over(_PartFuture(self._thread, self.future), self._add, payloads[:count])
            payloads = payloads[count:]
            if not payloads:
                try:
                    payloads, _ = next(pieces, ([], 0))
                except Exception as problem:  # noqa: BLE001 - of the application's iterables
                    error = problem
        self._thread.hand_over(_PartFuture(self._thread, self.future), self._end, error)

    def _hand_over(self, future: CallFuture[Any], start: Start, payloads: list[bytes]) -> None:
        """Calls that have their places."""
        try:
            self._thread.hand_over(future, start, payloads)
        except BaseException:
            self._give_back(payloads)
            raise

    def _give_back(self, payloads: list[bytes]) -> None:
        self._method.share.give(len(payloads), sum(map(len, payloads)))

    def _make_whole(self, future: CallFuture[Any], payloads: list[bytes]) -> None:
        self._begin(future, None)
        if payloads:
            self._add(future, payloads)
        self._end(future, None)

    def _begin(self, future: CallFuture[Any], _nothing: None) -> None:
        inner: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
        self._gather = Gather(0, inner, keeps_failures=self._keeps_failures, is_open=True)
        future.follow(inner)

    def _add(self, _future: CallFuture[Any], payloads: list[bytes]) -> None:
        if self._gather.done():
            self._give_back(payloads)
        else:
            self._method.submit_part(self._gather, payloads)

    def _end(self, _future: CallFuture[Any], error: Exception | None) -> None:
        self._gather.close(error)


class _PartFuture(CallFuture[Any]):
    """Of a part of a map. If it fails, the client was closed, or has failed: then so has the map."""

    def __init__(self, thread: ClientThread, whole: CallFuture[Any]) -> None:
        super().__init__(thread)
        self._whole = whole

    def set_exception(self, exception: BaseException | None) -> None:
        del exception  # calls of other parts may have been executed
        self._whole.set_exception(to_exception(CUT_OFF))
