"""How many calls a client may have made that are not sent yet, and how many payload bytes: one bound, in shares.

Purpose: calls that are made faster than the mesh takes them wait in the client. Past the bound a call is refused, or
waits in its caller, so that a client cannot fill its process's memory.
Invariants: all shares together hold at most the bound and an eighth more. A share may hold eight times what it leaves
free (`slotmesh/calls/fair_shares.py`). A share that holds nothing may take one call of any size while anything is free.
What a share was granted is a little ahead of what it holds, so that most calls need no decision. Calls that wait for
room get it in the order in which they arrived, each with its place taken. A tenant of an endpoint has one share.
Owner: the `Mesh`; a share belongs to an endpoint's outbox. On one event loop, or under `lock` if threads take places.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from itertools import islice
from time import monotonic
from typing import Final
from weakref import WeakValueDictionary

from slotmesh.calls.fair_shares import DynamicThreshold
from slotmesh.errors import Failure, Reason

MAX_BUFFERED_CALLS: Final = 65_536
MAX_BUFFERED_BYTES: Final = 256 * 1024 * 1024
"""What a client may hold by default."""
THRESHOLD: Final = DynamicThreshold(times=8)
"""Of what one share may hold."""
_BLOCKS: Final = 64
"""The number of parts of the bound, of which a share is granted one ahead."""
_BOUNDLESS: Final = 1 << 62
PIECE_S: Final = 0.5
"""How long the main thread waits at a time. A signal may arrive just before the wait, or in another thread, and does
not end the wait then: Ctrl-C is noticed between two waits."""
MAX_IDLE_SHARES: Final = 4_096
"""Shares of an endpoint that are kept while they hold nothing, about."""

Wake = Callable[[], bool]
"""Wakes a call whose place is taken; False if it does not wait any more."""


class ClientBuffer:
    """The bound of one client."""

    def __init__(
        self, max_calls: int = MAX_BUFFERED_CALLS, max_bytes: int = MAX_BUFFERED_BYTES, *, has_threads: bool = False
    ) -> None:
        """`has_threads`: places are taken in other threads than the loop's."""
        self.max_calls = max_calls
        self.max_bytes = max_bytes
        self.has_threads = has_threads
        self.lock: AbstractContextManager[object] = threading.Lock() if has_threads else nullcontext()
        self.free_calls = max_calls + -(-max_calls // THRESHOLD.times)
        self.free_bytes = max_bytes + -(-max_bytes // THRESHOLD.times)
        self._block_calls = max(max_calls // _BLOCKS, 1)
        self._block_bytes = max(max_bytes // _BLOCKS, 1)
        self._crowded: dict[BufferShare, None] = {}
        """Shares with calls that wait for room, longest first."""

    def lift(self) -> None:
        """There is no bound any more: the client is closed, and refuses the calls that wait for room."""
        with self.lock:
            self.free_calls = self.free_bytes = _BOUNDLESS
            self._let_in()

    def widen(self, share: BufferShare) -> bool:
        """Grants a share what it holds, and some more; False if it may not hold as much. Under the lock."""
        need_calls = max(share.calls - share.granted_calls, 0)
        need_bytes = max(share.nbytes - share.granted_bytes, 0)
        if not need_calls and not need_bytes:
            return True
        left_calls, left_bytes = self.free_calls - need_calls, self.free_bytes - need_bytes
        fits = THRESHOLD.allows(share.calls, left_calls) and THRESHOLD.allows(share.nbytes, left_bytes)
        if not fits and (share.calls > 1 or self.free_calls <= 0 or self.free_bytes <= 0):
            return False
        if fits and not self._crowded:
            if THRESHOLD.room(share.calls, left_calls) >= self._block_calls:
                need_calls += self._block_calls
            if THRESHOLD.room(share.nbytes, left_bytes) >= self._block_bytes:
                need_bytes += self._block_bytes
        self._grant(share, need_calls, need_bytes)
        return True

    def shrink(self, share: BufferShare) -> None:
        """Takes back what a share was granted and does not need. Then those that wait may go on. Under the lock."""
        ahead_calls, ahead_bytes = 2 * self._block_calls, 2 * self._block_bytes
        is_small = THRESHOLD.allows(share.calls + ahead_calls, self.free_calls) and (
            THRESHOLD.allows(share.nbytes + ahead_bytes, self.free_bytes)
        )
        keeps = bool(share.calls) and is_small and not self._crowded
        calls = share.granted_calls - share.calls - ahead_calls * keeps
        nbytes = share.granted_bytes - share.nbytes - ahead_bytes * keeps
        if calls > 0 or nbytes > 0:
            self._grant(share, -max(calls, 0), -max(nbytes, 0))
        if self._crowded:
            self._let_in()

    def wait(self, share: BufferShare, nbytes: int, wake: Wake) -> None:
        """`wake` is called once a call of that many bytes has its place. Under the lock."""
        share.waiters.append((nbytes, wake))
        self._crowded[share] = None

    def leave(self, share: BufferShare, nbytes: int, wake: Wake) -> None:
        """A waiter that has no place yet does not wait any more, nor those behind it for it. Under the lock."""
        if (nbytes, wake) not in share.waiters:
            return
        share.waiters.remove((nbytes, wake))
        if not share.waiters:
            del self._crowded[share]
        self._let_in()

    def _let_in(self) -> None:
        """Shares take turns, by a call each."""
        shares = deque(self._crowded)
        while shares:
            share = shares.popleft()
            nbytes, wake = share.waiters[0]
            share.calls += 1
            share.nbytes += nbytes
            if not self.widen(share):
                share.calls -= 1
                share.nbytes -= nbytes
                continue
            share.waiters.popleft()
            if not wake():
                share.calls -= 1
                share.nbytes -= nbytes
                self._grant(share, share.calls - share.granted_calls, share.nbytes - share.granted_bytes)
            if share.waiters:
                shares.append(share)
            else:
                del self._crowded[share]

    def _grant(self, share: BufferShare, calls: int, nbytes: int) -> None:
        share.granted_calls += calls
        share.granted_bytes += nbytes
        self.free_calls -= calls
        self.free_bytes -= nbytes


class BufferShare:
    """What one tenant of an endpoint holds of the buffer. May be counted up directly, if `admit` is asked then."""

    __slots__ = (
        "__weakref__",
        "buffer",
        "calls",
        "granted_bytes",
        "granted_calls",
        "has_refused",
        "nbytes",
        "waiters",
    )

    def __init__(self, buffer: ClientBuffer) -> None:
        self.buffer = buffer
        self.calls = 0
        """Calls that wait to be sent."""
        self.nbytes = 0
        """Bytes of their payloads."""
        self.granted_calls = 0
        self.granted_bytes = 0
        """What it may hold without a decision."""
        self.has_refused = False
        """The call before was refused."""
        self.waiters: deque[tuple[int, Wake]] = deque()
        """Calls for which there is no room yet, by their bytes."""

    def admit(self, calls: int, nbytes: int) -> bool:
        """These calls were counted up: whether they may stay. If not they are counted down again. Under the lock."""
        if self.waiters or not self.buffer.widen(self):
            self.calls -= calls
            self.nbytes -= nbytes
            return False
        self.has_refused = False
        return True

    def try_take(self, calls: int, nbytes: int) -> bool:
        """Takes places, if there is room, and no call waits for it. Under the lock."""
        self.calls += calls
        self.nbytes += nbytes
        return self.admit(calls, nbytes)

    def take(self, calls: int, nbytes: int) -> bool:
        """As `try_take`, which takes the lock."""
        with self.buffer.lock:
            self.calls += calls
            self.nbytes += nbytes
            is_granted = self.calls <= self.granted_calls and self.nbytes <= self.granted_bytes
            return (is_granted and not self.waiters) or self.admit(calls, nbytes)

    def put(self, calls: int, nbytes: int) -> None:
        """Takes places, whether or not there is room: of calls that were sent, and come back."""
        with self.buffer.lock:
            self.calls += calls
            self.nbytes += nbytes
            self.buffer._grant(self, max(self.calls - self.granted_calls, 0), max(self.nbytes - self.granted_bytes, 0))

    def give(self, calls: int, nbytes: int) -> None:
        """Calls do not wait any more."""
        with self.buffer.lock:
            self.calls -= calls
            self.nbytes -= nbytes
            self.buffer.shrink(self)

    def has_room(self, calls: int, nbytes: int) -> bool:
        """Whether there seems to be room for these calls."""
        if not self.take(calls, nbytes):
            return False
        self.give(calls, nbytes)
        return True

    async def room(self, nbytes: int) -> None:
        """Waits for the place of a call of that many bytes, and takes it. On the loop of a client without threads."""
        if self.take(1, nbytes):
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def wake() -> bool:
            if waiter.done():
                return False
            waiter.set_result(None)
            return True

        self.buffer.wait(self, nbytes, wake)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self.give(1, nbytes)
            else:
                self.buffer.leave(self, nbytes, wake)
            raise

    def wait_for_room(self, nbytes: int, until: float) -> bool:
        """As `room`, in a thread. False if there is no room until then, in seconds of the monotonic clock."""
        arrived = threading.Event()

        def wake() -> bool:
            arrived.set()
            return True

        def came_late() -> bool:
            with self.buffer.lock:
                self.buffer.leave(self, nbytes, wake)
            return arrived.is_set()

        with self.buffer.lock:
            if self.try_take(1, nbytes):
                return True
            self.buffer.wait(self, nbytes, wake)
        try:
            while (left_s := until - monotonic()) > 0:
                if arrived.wait(min(PIECE_S, left_s)):
                    return True
        except BaseException:
            if came_late():
                self.give(1, nbytes)
            raise
        return came_late()

    def take_front(self, payloads: list[bytes]) -> int:
        """The first of these calls has its place: takes those of the next ones. Returns how many have one then."""
        count = 1
        while count < len(payloads) and self.take(1, len(payloads[count])):
            count += 1
        return count

    def full(self) -> Failure:
        """Why a call is refused."""
        buffer = self.buffer
        return Failure(
            reason=Reason.CLIENT_BUFFER_FULL,
            message=f"{self.calls} calls with {self.nbytes} bytes wait in this client to be sent to the endpoint; "
            "await some of them, make calls by `await METHOD.send(…)`, which waits for room, or connect with more "
            f"max_buffered_calls ({buffer.max_calls}) or max_buffered_bytes ({buffer.max_bytes})",
        )


class BufferShares:
    """The shares of one endpoint, by tenant."""

    def __init__(self, buffer: ClientBuffer | None = None) -> None:
        """None: without a bound."""
        self.buffer = buffer or ClientBuffer(_BOUNDLESS, _BOUNDLESS)
        self._shares: dict[str, BufferShare] = {}
        """By tenant, the most recently used last."""
        self._dropped: WeakValueDictionary[str, BufferShare] = WeakValueDictionary()
        """Shares that held nothing, for as long as a method or a call has them: a tenant never has two."""

    def of(self, tenant: str) -> BufferShare:
        """That of the calls of a tenant; empty: of those without one."""
        share = self._shares.get(tenant)
        return self._add(tenant) if share is None else share

    def _add(self, tenant: str) -> BufferShare:
        with self.buffer.lock:
            if (share := self._shares.get(tenant)) is None:
                share = self._dropped.pop(tenant, None) or BufferShare(self.buffer)
                self._shares[tenant] = share
                if len(self._shares) > MAX_IDLE_SHARES:
                    self._drop_idle()
            return share

    def _drop_idle(self) -> None:
        """Looks at two shares, in turn: each that is added costs the same, however many hold something."""
        for tenant in [*islice(self._shares, 2)]:
            share = self._shares.pop(tenant)
            if share.calls or share.waiters:
                self._shares[tenant] = share
            else:
                self._dropped[tenant] = share
