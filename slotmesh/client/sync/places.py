"""Threads that wait for room in the client's buffer.

Invariants: a thread that gives up, as its time is over or by Ctrl-C, has no place. No thread waits with the buffer's
lock.
"""

from __future__ import annotations

import threading
from time import monotonic

from slotmesh.client.calls.buffer import BufferShare
from slotmesh.client.sync.call_future import PIECE_S


class WaitingThread:
    """One of them."""

    def __init__(self, share: BufferShare, nbytes: int) -> None:
        """It wants the place of a call of so many bytes."""
        self._share = share
        self._nbytes = nbytes
        self._arrived = threading.Event()

    def wait(self, until: float) -> bool:
        """Takes the place once there is room. False if there is none until then, in seconds of the monotonic clock."""
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
        """Whether the place arrived nevertheless."""
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
