"""The outcome of a call, for threads.

Invariants: done once, by the client's thread or by the thread that cancels it, whichever comes first; the other is too
late and changes nothing. A single call's future is the very sink of the asyncio client: there is no other future behind
it. Those of maps and tasks follow an asyncio one. Waiting that could never end raises instead.
Owner: the thread that made the call; the `ClientThread` settles it.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from functools import partial
from math import inf
from time import monotonic
from typing import Any, Final, Protocol, TypeVar

from slotmesh.errors import Executed, Failure, Reason
from slotmesh.status import to_exception

ResultT = TypeVar("ResultT")

_log = logging.getLogger(__name__)

CUT_OFF: Final = Failure(
    reason=Reason.CANCELLED,
    message="the mesh was closed before the call was answered",
    executed=Executed.UNKNOWN,
)

PIECE_S: Final = 0.5
"""How long the main thread waits at a time. A signal may come just before it begins to, or to another thread, and then
does not end the wait: Ctrl-C is noticed between the pieces."""

_OPEN: Final = frozenset({"PENDING", "RUNNING"})
"""States of the base class in which there is no outcome."""


class SettlingThread(Protocol):
    """The thread in which the asyncio client lives, as a future needs it."""

    def check_may_wait(self) -> None:
        """Raises RuntimeError where waiting for an outcome would never end."""

    def drop(self, future: CallFuture[Any]) -> None:
        """The future was cancelled: what it follows is, too."""

    @property
    def is_current(self) -> bool:
        """Whether this is it."""


class CallFuture(Future[ResultT]):
    """A `concurrent.futures.Future` whose `cancel` takes the call back, wherever it is.

    Its callbacks run in the client's thread: they must be quick, and cannot wait for other calls. As with any future of
    `concurrent.futures`, what is added to one that is done already runs at once, in the thread that adds it, and
    `cancel` runs them in the thread that cancels.
    """

    _inner: asyncio.Future[Any] | None = None
    """What it follows. Class attributes: a single call has neither."""
    _is_told = False
    """Whether waits for several futures were informed of the cancel."""

    def __init__(self, thread: SettlingThread) -> None:
        super().__init__()
        self._thread = thread

    def done(self) -> bool:
        """As the base class says it, without its lock: asked several times a call, and safe in a forked process."""
        return self._state not in _OPEN

    def cancel(self) -> bool:
        """Gives the result up: what waits never starts, what runs is told to stop. False where it is too late."""
        if not super().cancel():
            return False
        with self._condition:
            if not self._is_told:
                self._is_told = True
                self.set_running_or_notify_cancel()
        if self._inner is not None:
            self._thread.drop(self)
        return True

    def result(self, timeout: float | None = None) -> ResultT:
        """Waits for the result, at most `timeout` seconds. The call goes on where that is not enough.

        Raises:
            SlotmeshError: the call failed, and how.
            TimeoutError: it is not answered yet.
            concurrent.futures.CancelledError: it was cancelled.
            RuntimeError: nothing can come while one waits here: in a forked process, or in a callback of a future.
        """
        if not self.done():
            self._thread.check_may_wait()
            timeout = self._wait(timeout)
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Waits as `result` does. The failure; None where there is a result."""
        if not self.done():
            self._thread.check_may_wait()
            timeout = self._wait(timeout)
        return super().exception(timeout)

    def _wait(self, timeout: float | None) -> float | None:
        """Waits in pieces, where this is the main thread. Returns what is left of the timeout; None: no end."""
        if threading.current_thread() is not threading.main_thread():
            return timeout
        until = inf if timeout is None else monotonic() + timeout
        while not self.done() and (left_s := until - monotonic()) > 0:
            with self._condition:
                if not self.done():
                    self._condition.wait(min(PIECE_S, left_s))
        return 0

    def add_done_callback(self, fn: Callable[[Future[ResultT]], object]) -> None:
        """Calls it with the future when that is done. What it raises in the client's thread is logged, and no more."""
        super().add_done_callback(partial(_call_back, self._thread, fn))

    # -- in the client's thread ------------------------------------------------------------------------------------

    def set_result(self, result: ResultT) -> None:
        """Nothing happens where it was cancelled meanwhile."""
        try:  # noqa: SIM105 - `suppress` costs half of what this does
            super().set_result(result)
        except InvalidStateError:
            pass

    def set_exception(self, exception: BaseException | None) -> None:
        """Nothing happens where it was cancelled meanwhile."""
        with suppress(InvalidStateError):
            super().set_exception(exception)

    def follow(self, inner: asyncio.Future[Any]) -> None:
        """Takes the outcome of this one."""
        self._inner = inner
        if self.cancelled():  # before it could be seen there
            inner.cancel()
        inner.add_done_callback(self._settle)

    def drop_inner(self) -> None:
        """It was cancelled: so is what it follows."""
        if self._inner is not None:
            self._inner.cancel()

    def _settle(self, inner: asyncio.Future[Any]) -> None:
        self._inner = None
        if inner.cancelled():
            if not self.cancelled():
                self.set_exception(to_exception(CUT_OFF))
        elif (error := inner.exception()) is not None:
            self.set_exception(error)
        else:
            self.set_result(inner.result())


def _call_back(thread: SettlingThread, fn: Callable[[Future[Any]], object], future: Future[Any]) -> None:
    try:
        fn(future)
    except Exception:
        raise  # the base class logs it
    except BaseException:
        if not thread.is_current:
            raise
        _log.exception("a callback of a call's future raised what would have ended the client")
