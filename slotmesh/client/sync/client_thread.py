"""The thread in which the asyncio client lives.

Purpose: does the work that other threads pass to it, from its start to its end; refuses waits that would never end.
Invariants: every future that was passed gets done, also if the mesh is closed meanwhile. Passing work takes no lock.
`lock` is for making endpoints, lanes and methods, which all threads may do; no thread waits for the client's thread
while it holds it.
Owner: the `SyncMesh`. The thread starts with the first endpoint, so that a mesh may be made before a process forks.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any, ClassVar, Final, TypeVar
from weakref import WeakSet

from slotmesh.client.mesh import Mesh
from slotmesh.client.sync.call_future import PIECE_S, CallFuture, Start, ThreadWorkQueue
from slotmesh.errors import Failure, Reason
from slotmesh.status import to_exception

ResultT = TypeVar("ResultT")

LAST_TURNS_S: Final = 1.0
"""How long what hangs on calls may take to end when they have."""

EXIT_S: Final = 3.0
"""How long the end of the program waits for the thread, where the mesh was not closed."""

CLOSED: Final = "the mesh is closed"
FORKED: Final = (
    "gRPC does not outlive a fork, and a mesh had been in use when this process was forked: "
    "fork before any mesh is asked for an endpoint, or start processes by spawn"
)
OWN_THREAD: Final = (
    "waiting here would never end: this is the client's own thread, in which callbacks of futures run; "
    "hand what waits to another thread"
)

_NOT_BEGUN: Final = Failure(reason=Reason.CANCELLED, message="the mesh was closed before the call was made")

Task = tuple[Callable[..., Coroutine[Any, Any, Any]], tuple[Any, ...], dict[str, Any]]

_threads: WeakSet[ClientThread] = WeakSet()


class ClientThread:
    """Runs from the first call of `start` until `close`, or until the program ends."""

    _began_in: ClassVar[int | None] = None
    """The process in which one began first, and with it gRPC: that never answers in what is forked from there."""

    def __init__(self, mesh: Mesh) -> None:
        self._mesh = mesh
        self.lock = threading.RLock()
        self._work = ThreadWorkQueue(self._too_late)
        self._refusal: str | None = None
        """Why no more work is taken."""
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closings: list[asyncio.Task[None]] = []
        self._thread: threading.Thread | None = None
        self._begun = threading.Event()
        self._gone = threading.Event()
        self._ident: int | None = None
        self._loop: asyncio.AbstractEventLoop
        self._close_asked: asyncio.Event
        _threads.add(self)

    # -- in any thread ---------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begins, if it has not. Everything else needs that."""
        with self.lock:
            if ClientThread._began_in is None:
                ClientThread._began_in = os.getpid()
            elif ClientThread._began_in != os.getpid():
                self._refusal = FORKED
            if self._refusal is not None:
                return
            if self._thread is None:
                thread = threading.Thread(target=self._main, name="slotmesh-client", daemon=True)
                thread.start()
                self._thread = thread
                atexit.register(self._exit)
        self._begun.wait()

    def hand_over(self, future: CallFuture[Any], start: Start, argument: Any) -> None:
        """Has `start(future, argument)` done by the client's thread, after all that was handed over before.

        Raises:
            RuntimeError: the mesh is closed, or belongs to another process.
        """
        self.check_open()
        self._work.put(future, start, argument)

    def go_on(self, future: CallFuture[ResultT], function: Callable[[], Coroutine[Any, Any, ResultT]]) -> None:
        """Has a coroutine function awaited that belongs to calls that were made: also when the mesh is closed.

        Once it is, all calls have their outcome, and nothing that belongs to them waits any more.
        """
        self._work.put(future, self._go_on, function)

    def outcome(self, start: Start, argument: Any, timeout: float | None = None) -> Any:
        """Hands over, and waits. An interrupt, or the end of the timeout, cancels the call.

        Raises:
            RuntimeError: as `hand_over` and `check_may_wait`. Nothing was made.
            TimeoutError: there is no outcome within `timeout` seconds.
        """
        self.check_may_wait()
        future: CallFuture[Any] = CallFuture(self)
        try:
            self.hand_over(future, start, argument)
            return future.result(timeout)
        except BaseException:
            future.cancel()
            raise

    def outcome_of_more(self, function: Callable[[], Coroutine[Any, Any, ResultT]]) -> ResultT:
        """As `outcome`, of what `go_on` is for."""
        self.check_may_wait()
        future: CallFuture[ResultT] = CallFuture(self)
        try:
            self.go_on(future, function)
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def call(self, function: Callable[[], ResultT]) -> ResultT:
        """Runs a function that needs the loop and does not wait: after all work passed before, with the lock."""
        if self.is_current:
            with self.lock:
                return function()
        result: ResultT = self.outcome(self._run, function)
        return result

    @property
    def is_current(self) -> bool:
        """Whether the caller is in this very thread."""
        return threading.get_ident() == self._ident

    def check_open(self) -> None:
        """Raises RuntimeError where no more work is taken."""
        if self._refusal is not None:
            raise RuntimeError(self._refusal)

    def check_may_wait(self) -> None:
        """Raises RuntimeError where waiting for an outcome would never end."""
        if self.is_current:
            raise RuntimeError(OWN_THREAD)
        if self._refusal == FORKED:
            raise RuntimeError(FORKED)

    def drop(self, future: CallFuture[Any]) -> None:
        """The future was cancelled: what it follows is, too."""
        self._work.put(future, _drop, None)

    def close(self, grace_s: float) -> None:
        """Makes no more calls; returns when all are answered, or have failed at the end of the grace.

        Closing again with less grace cuts the first one short: so does a second Ctrl-C.
        """
        if self._refusal == FORKED:
            return
        self.check_may_wait()
        with self.lock:
            self._refusal = CLOSED
            thread = self._thread
        if thread is None:
            return
        self._ask_to_close(grace_s)
        while not self._gone.wait(PIECE_S):
            pass  # `join` takes a thread for dead, from then on, once Ctrl-C has interrupted it
        thread.join()
        atexit.unregister(self._exit)

    def forget_after_fork(self) -> None:
        """In a forked child: neither the client's thread exists there, nor one that held the lock."""
        self.lock = threading.RLock()
        if self._thread is not None and not self._work.ended:
            self._refusal = FORKED
            self._ident = None
            self._work.forget()

    def _too_late(self, future: CallFuture[Any], start: Start, argument: Any) -> None:
        """Settles work that is not taken over any more: that of calls that have ended runs here, other work fails."""
        if start == self._go_on:
            _run_without_loop(future, argument())
        else:
            future.set_exception(to_exception(_NOT_BEGUN))

    def _ask_to_close(self, grace_s: float) -> None:
        self._begun.wait()
        if self._work.ended:
            return
        with suppress(RuntimeError):  # it has ended meanwhile
            self._loop.call_soon_threadsafe(self._begin_to_close, grace_s)

    def _exit(self) -> None:
        """The program ends, and the mesh was not closed."""
        self._refusal = self._refusal or CLOSED
        if self._thread is not None and self._refusal != FORKED:
            self._ask_to_close(0.0)
            self._gone.wait(EXIT_S)

    # -- in the client's thread ------------------------------------------------------------------------------------

    def start_task(self, future: CallFuture[Any], task: Task) -> None:
        """A `Start`: awaits a coroutine function."""
        function, args, kwargs = task
        self._go_on(future, partial(function, *args, **kwargs))

    def _go_on(self, future: CallFuture[Any], function: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        if future.done():
            return
        running = self._loop.create_task(function())
        self._tasks.add(running)
        running.add_done_callback(self._tasks.discard)
        future.follow(running)

    def _run(self, future: CallFuture[Any], function: Callable[[], Any]) -> None:
        with self.lock:
            result = function()
        future.set_result(result)

    def _main(self) -> None:
        try:
            with asyncio.Runner() as runner:
                runner.run(self._serve())
        finally:
            self._work.end()
            self._begun.set()
            self._ident = None  # another thread may have it next
            self._gone.set()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._close_asked = asyncio.Event()
        self._ident = threading.get_ident()
        self._work.open(self._loop)
        self._begun.set()
        await self._close_asked.wait()
        while self._closings:
            await self._closings.pop()
        until = self._loop.time() + LAST_TURNS_S
        while self._tasks and (left_s := until - self._loop.time()) > 0:
            await asyncio.wait(self._tasks, timeout=left_s)
        self._work.end()  # the turns that the loop has yet cancel its tasks: one that began now would have no outcome

    def _begin_to_close(self, grace_s: float) -> None:
        self._work.take_all()
        self._closings.append(self._loop.create_task(self._close(grace_s)))
        self._close_asked.set()

    async def _close(self, grace_s: float) -> None:
        until = self._loop.time() + grace_s
        if self._tasks and grace_s > 0:
            await asyncio.wait(self._tasks, timeout=grace_s)
        await self._mesh.aclose(max(until - self._loop.time(), 0.0))


def _run_without_loop(future: CallFuture[ResultT], coroutine: Coroutine[Any, Any, ResultT]) -> None:
    try:
        coroutine.send(None)
    except StopIteration as returned:
        future.set_result(returned.value)
    except Exception as error:  # noqa: BLE001 - any error is the outcome of the future
        future.set_exception(error)
    else:
        coroutine.close()
        future.set_exception(to_exception(_NOT_BEGUN))


def _drop(future: CallFuture[Any], _nothing: None) -> None:
    future.drop_inner()


def _forget_after_fork() -> None:
    for thread in list(_threads):
        thread.forget_after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_after_fork)
