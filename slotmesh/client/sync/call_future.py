"""The outcome of a call, for threads, and the queue of work for the client's thread.

Invariants: a future is done once, by the client's thread or by the thread that cancels it, whichever is first; the
other changes nothing. A single call's future is itself the sink of the asyncio client: there is no other future behind
it. Those of maps and tasks follow an asyncio future. A wait that could never end raises instead.
Owner: the thread that made the call; the `ClientThread` settles it.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from functools import partial
from math import inf
from time import monotonic
from typing import Any, Final, TypeVar

from slotmesh.client.calls.buffer import PIECE_S
from slotmesh.errors import Executed, Failure, Reason
from slotmesh.status import to_exception

ResultT = TypeVar("ResultT")

_log = logging.getLogger(__name__)

CUT_OFF: Final = Failure(
    reason=Reason.CANCELLED,
    message="the mesh was closed before the call was answered",
    executed=Executed.UNKNOWN,
)

_OPEN: Final = frozenset({"PENDING", "RUNNING"})
"""States of the base class in which there is no outcome."""


class CallFuture(Future[ResultT]):
    """A `concurrent.futures.Future` whose `cancel` cancels the call, wherever it is.

    Its callbacks run in the client's thread: they must be quick, and cannot wait for other calls. As with any future of
    `concurrent.futures`, a callback that is added to a future that is done runs immediately, in the thread that adds
    it, and `cancel` runs callbacks in the thread that cancels.
    """

    _inner: asyncio.Future[Any] | None = None
    """The future that it follows. Class attributes: a single call has neither."""
    _is_notified = False
    """Whether waits for several futures were informed of the cancel."""

    def __init__(self, work: ThreadWorkQueue) -> None:
        """`work`: on its way to the client's thread, which settles the future."""
        super().__init__()
        self._work = work

    def done(self) -> bool:
        """As in the base class, without its lock: called several times for each call, and safe in a forked process."""
        return self._state not in _OPEN

    def cancel(self) -> bool:
        """Cancels the call: it never starts, or its replica is notified. False if it has its outcome."""
        if not super().cancel():
            return False
        with self._condition:
            if not self._is_notified:
                self._is_notified = True
                self.set_running_or_notify_cancel()
        if self._inner is not None:
            self._work.put(self, _drop_inner, None)
        return True

    def result(self, timeout: float | None = None) -> ResultT:
        """Waits for the result, at most `timeout` seconds. The call continues if that is not enough.

        Raises:
            SlotmeshError: the call failed, and how.
            TimeoutError: it is not answered yet.
            concurrent.futures.CancelledError: it was cancelled.
            RuntimeError: nothing can come while one waits here: in a forked process, or in a callback of a future.
        """
        if not self.done():
            self._work.check_may_wait()
            timeout = self._wait(timeout)
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Waits as `result` does. Returns the failure; None if there is a result."""
        if not self.done():
            self._work.check_may_wait()
            timeout = self._wait(timeout)
        return super().exception(timeout)

    def _wait(self, timeout: float | None) -> float | None:
        """Waits in pieces, in the main thread. Returns what is left of the timeout; None: no end."""
        if threading.current_thread() is not threading.main_thread():
            return timeout
        until = inf if timeout is None else monotonic() + timeout
        while not self.done() and (left_s := until - monotonic()) > 0:
            with self._condition:
                if not self.done():
                    self._condition.wait(min(PIECE_S, left_s))
        return 0

    def add_done_callback(self, fn: Callable[[Future[ResultT]], object]) -> None:
        """Calls `fn` with the future when it is done. What it raises in the client's thread is only logged."""
        super().add_done_callback(partial(_call_back, self._work, fn))

    # -- in the client's thread ------------------------------------------------------------------------------------

    def set_result(self, result: ResultT) -> None:
        """Does nothing if the future was cancelled meanwhile."""
        try:  # noqa: SIM105 - `suppress` costs half of what this does
            super().set_result(result)
        except InvalidStateError:
            pass

    def set_exception(self, exception: BaseException | None) -> None:
        """Does nothing if the future was cancelled meanwhile."""
        with suppress(InvalidStateError):
            super().set_exception(exception)

    def follow(self, inner: asyncio.Future[Any]) -> None:
        """Takes the outcome of this future."""
        self._inner = inner
        if self.cancelled():  # before it followed
            inner.cancel()
        inner.add_done_callback(self._settle)

    def _settle(self, inner: asyncio.Future[Any]) -> None:
        self._inner = None
        if inner.cancelled():
            if not self.cancelled():
                self.set_exception(to_exception(CUT_OFF))
        elif (error := inner.exception()) is not None:
            self.set_exception(error)
        else:
            self.set_result(inner.result())


def _call_back(work: ThreadWorkQueue, fn: Callable[[Future[Any]], object], future: Future[Any]) -> None:
    try:
        fn(future)
    except Exception:
        raise  # the base class logs it
    except BaseException:
        if not work.is_in_thread:
            raise
        _log.exception("a callback of a call's future raised what would have ended the client")


def _drop_inner(future: CallFuture[Any], _nothing: None) -> None:
    """The future was cancelled: cancels the one that it follows."""
    if future._inner is not None:
        future._inner.cancel()


TURN: Final = 4_096
"""Work that is taken over before the loop checks its sockets again."""

Start = Callable[[CallFuture[Any], Any], object]
"""Starts the work of a future, in the client's thread. What it raises is the outcome."""

FORKED: Final = (
    "gRPC does not outlive a fork, and a mesh had been in use when this process was forked: "
    "fork before any mesh is asked for an endpoint, or start processes by spawn"
)
OWN_THREAD: Final = (
    "waiting here would never end: this is the client's own thread, in which callbacks of futures run; "
    "hand what waits to another thread"
)

TooLate = Callable[[CallFuture[Any], Start, Any], object]
"""Fails a future whose work will not start. In any thread."""


class ThreadWorkQueue:
    """Work on its way from any thread to the client's thread, which takes it over from `open` to `end`.

    Purpose: the loop is woken once for all work that has accumulated.
    Invariants: work is started in the order in which it was put, by any thread. Every future that was put gets done,
    also if its work comes too late. There is no lock: appending to a deque and popping from it are atomic, work is put
    before `_woken` is read, and `_woken` is false before work is taken. If two threads both wake the loop, it finds
    nothing to do the second time.
    Owner: the `ClientThread`; any thread puts.
    """

    def __init__(self, too_late: TooLate) -> None:
        self._too_late = too_late
        self._work: deque[tuple[CallFuture[Any], Start, Any]] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._woken = False
        """Whether `_take_over` is due, and has not begun."""
        self._ended = False
        self._ident: int | None = None
        """The thread's, while it takes work over."""
        self.is_forked = False
        """Whether the thread is in another process, where the work gets done."""

    # -- in any thread ---------------------------------------------------------------------------------------------

    @property
    def ended(self) -> bool:
        """Whether work is not taken over any more."""
        return self._ended

    @property
    def is_in_thread(self) -> bool:
        """Whether the caller is in the client's thread."""
        return threading.get_ident() == self._ident

    def check_may_wait(self) -> None:
        """Raises RuntimeError if waiting for an outcome would never end."""
        if self.is_in_thread:
            raise RuntimeError(OWN_THREAD)
        if self.is_forked:
            raise RuntimeError(FORKED)

    def put(self, future: CallFuture[Any], start: Start, argument: Any) -> None:
        """Has `start(future, argument)` done by the client's thread."""
        self._work.append((future, start, argument))
        if not self._woken:
            self._wake()

    def end(self) -> None:
        """The loop ends: work is not taken over any more."""
        self._ended = True
        self._end_rest()

    def left(self) -> None:
        """The thread has ended: another one may have its number next."""
        self._ident = None

    def forget(self) -> None:
        """The thread is in another process. Touches no future, whose lock may be held there."""
        self._ended = self.is_forked = True
        self._ident = None
        self._work.clear()

    def _wake(self) -> None:
        loop = self._loop
        if loop is not None and not self._ended:
            try:
                self._woken = True
                loop.call_soon_threadsafe(self._take_over)
            except RuntimeError:
                pass  # it is closed, and `end` follows
            except BaseException:  # Ctrl-C in between: nothing would wake it again
                loop.call_soon_threadsafe(self._take_over)
                raise
        if self._ended:
            self._end_rest()

    def _end_rest(self) -> None:
        """Fails all work that came too late; any thread that finds that out calls it."""
        self._woken = False
        while self._work:
            try:
                late = self._work.popleft()
            except IndexError:  # another thread was quicker
                return
            self._too_late(*late)

    # -- in the client's thread ------------------------------------------------------------------------------------

    def open(self, loop: asyncio.AbstractEventLoop) -> None:
        """The loop runs in this thread, and takes work over."""
        self._loop = loop
        self._ident = threading.get_ident()

    def take_all(self) -> None:
        """Takes over all work that was put until now."""
        while self._work:
            self._take_over()

    def _take_over(self) -> None:
        self._woken = False
        work = self._work
        for _ in range(min(len(work), TURN)):
            future, start, argument = work.popleft()
            try:
                start(future, argument)
            except BaseException as error:  # noqa: BLE001 - any error is the outcome of the future
                future.set_exception(error)
        if work and not self._woken and self._loop is not None:
            self._woken = True
            self._loop.call_soon(self._take_over)
