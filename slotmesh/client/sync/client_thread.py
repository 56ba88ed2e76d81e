"""The thread in which the asyncio client lives, and the maps that other threads make with it.

Purpose: does the work that other threads pass to it, from its start to its end; refuses waits that would never end.
Invariants: every future that was passed gets done, also if the mesh is closed meanwhile. Passing work takes no lock.
`lock` is for making endpoints, lanes and methods, which all threads may do; no thread waits for the client's thread
while it holds it. A map's iterables are read and encoded in the thread that makes it, as the client has room for its
calls. What they raise before a call was made is raised; what they raise later is the map's outcome, after all calls
that were made have ended. A thread that gives up waiting for room, because of its timeout or Ctrl-C, has no place.
Owner: the `SyncMesh`. The thread starts with the first endpoint, so that a mesh may be made before a process forks.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from contextvars import Context
from typing import Any, ClassVar, Final, TypeVar
from weakref import WeakSet

from slotmesh.client.calls.buffer import PIECE_S
from slotmesh.client.calls.maps import Gather, Piece, first_pieces
from slotmesh.client.mesh import Mesh
from slotmesh.client.method import Method
from slotmesh.client.sync.call_future import CUT_OFF, FORKED, CallFuture, Start, ThreadWorkQueue
from slotmesh.errors import Failure, Reason
from slotmesh.status import to_exception

ResultT = TypeVar("ResultT")

LAST_TURNS_S: Final = 1.0
"""How long what hangs on calls may take to end when they have."""

EXIT_S: Final = 3.0
"""How long the end of the program waits for the thread, where the mesh was not closed."""

CLOSED: Final = "the mesh is closed"

_NOT_BEGUN: Final = Failure(reason=Reason.CANCELLED, message="the mesh was closed before the call was made")

Task = tuple[Callable[[], Coroutine[Any, Any, Any]], Context | None]
"""A coroutine function, and the context in which it is awaited; None: that of the client's thread."""

_threads: WeakSet[ClientThread] = WeakSet()


class ClientThread:
    """Runs from the first call of `start` until `close`, or until the program ends."""

    _began_in: ClassVar[int | None] = None
    """The process in which one began first, and with it gRPC: that never answers in what is forked from there."""

    def __init__(self, mesh: Mesh) -> None:
        self._mesh = mesh
        self.lock = threading.RLock()
        self.work = ThreadWorkQueue(self._too_late)
        """On its way here, from other threads."""
        self._refusal: str | None = None
        """Why no more work is taken."""
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closings: list[asyncio.Task[None]] = []
        self._thread: threading.Thread | None = None
        self._begun = threading.Event()
        self._gone = threading.Event()
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
                self._forget()
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
        self.work.put(future, start, argument)

    def go_on(self, future: CallFuture[ResultT], function: Callable[[], Coroutine[Any, Any, ResultT]]) -> None:
        """Has a coroutine function awaited that belongs to calls that were made: also when the mesh is closed.

        Once it is, all calls have their outcome, and nothing that belongs to them waits any more.
        """
        self.work.put(future, self._go_on, function)

    def outcome(self, start: Start, argument: Any) -> Any:
        """Hands over, and waits. An interrupt cancels the call.

        Raises:
            RuntimeError: as `hand_over`, or waiting would never end. Nothing was made.
        """
        return self._outcome(lambda future: self.hand_over(future, start, argument))

    def run(self, function: Callable[[], Coroutine[Any, Any, ResultT]], context: Context | None = None) -> ResultT:
        """As `outcome`, of a coroutine function, which is awaited in this context."""
        result: ResultT = self.outcome(self._begin_task, (function, context))
        return result

    def outcome_of_more(self, function: Callable[[], Coroutine[Any, Any, ResultT]]) -> ResultT:
        """As `run`, of what `go_on` is for."""
        result: ResultT = self._outcome(lambda future: self.go_on(future, function))
        return result

    def _outcome(self, hand_over: Callable[[CallFuture[Any]], object]) -> Any:
        self.work.check_may_wait()
        future: CallFuture[Any] = CallFuture(self.work)
        try:
            hand_over(future)
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def call(self, function: Callable[[], ResultT]) -> ResultT:
        """Runs a function that needs the loop and does not wait: after all work passed before, with the lock."""
        if self.work.is_in_thread:
            with self.lock:
                return function()
        result: ResultT = self.outcome(self._run, function)
        return result

    def check_open(self) -> None:
        """Raises RuntimeError where no more work is taken."""
        if self._refusal is not None:
            raise RuntimeError(self._refusal)

    def close(self, grace_s: float) -> None:
        """Makes no more calls; returns when all are answered, or have failed at the end of the grace.

        Closing again with less grace cuts the first one short: so does a second Ctrl-C.
        """
        if self.work.is_forked:
            return
        self.work.check_may_wait()
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
        if self._thread is not None and not self.work.ended:
            self._forget()

    def _forget(self) -> None:
        self._refusal = FORKED
        self.work.forget()

    def _too_late(self, future: CallFuture[Any], start: Start, argument: Any) -> None:
        """Settles work that is not taken over any more: that of calls that have ended runs here, other work fails."""
        if start == self._go_on:
            _run_without_loop(future, argument())
        else:
            future.set_exception(to_exception(_NOT_BEGUN))

    def _ask_to_close(self, grace_s: float) -> None:
        self._begun.wait()
        if self.work.ended:
            return
        with suppress(RuntimeError):  # it has ended meanwhile
            self._loop.call_soon_threadsafe(self._begin_to_close, grace_s)

    def _exit(self) -> None:
        """The program ends, and the mesh was not closed."""
        self._refusal = self._refusal or CLOSED
        if self._thread is not None and not self.work.is_forked:
            self._ask_to_close(0.0)
            self._gone.wait(EXIT_S)

    # -- in the client's thread ------------------------------------------------------------------------------------

    def _begin_task(self, future: CallFuture[Any], task: Task) -> None:
        function, context = task
        if not future.done():
            running = self._loop.create_task(function(), context=context)
            self._tasks.add(running)
            running.add_done_callback(self._tasks.discard)
            future.follow(running)

    def _go_on(self, future: CallFuture[Any], function: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        self._begin_task(future, (function, None))

    def _run(self, future: CallFuture[Any], function: Callable[[], Any]) -> None:
        with self.lock:
            result = function()
        future.set_result(result)

    def _main(self) -> None:
        try:
            with asyncio.Runner() as runner:
                runner.run(self._serve())
        finally:
            self.work.end()
            self._begun.set()
            self.work.left()
            self._gone.set()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._close_asked = asyncio.Event()
        self.work.open(self._loop)
        self._begun.set()
        await self._close_asked.wait()
        while self._closings:
            await self._closings.pop()
        until = self._loop.time() + LAST_TURNS_S
        while self._tasks and (left_s := until - self._loop.time()) > 0:
            await asyncio.wait(self._tasks, timeout=left_s)
        self.work.end()  # the turns that the loop has yet cancel its tasks: one that began now would have no outcome

    def _begin_to_close(self, grace_s: float) -> None:
        self.work.take_all()
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


def _forget_after_fork() -> None:
    for thread in list(_threads):
        thread.forget_after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_after_fork)


class ThreadMap:
    """Makes the calls of one map."""

    def __init__(self, thread: ClientThread, method: Method[Any], *, keeps_failures: bool) -> None:
        self._thread = thread
        self._method = method
        self._keeps_failures = keeps_failures
        self._gather: Gather
        self.future: CallFuture[Any] = CallFuture(thread.work)
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
            if not share.wait_for_room(len(payloads[0]), until):
                raise TimeoutError
            count = share.take_front(payloads)
            self._hand_over(_PartFuture(self._thread.work, self.future), self._add, payloads[:count])
            payloads = payloads[count:]
            if not payloads:
                try:
                    payloads, _ = next(pieces, ([], 0))
                except Exception as problem:  # noqa: BLE001 - of the application's iterables
                    error = problem
        self._thread.hand_over(_PartFuture(self._thread.work, self.future), self._end, error)

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

    def __init__(self, work: ThreadWorkQueue, whole: CallFuture[Any]) -> None:
        super().__init__(work)
        self._whole = whole

    def set_exception(self, exception: BaseException | None) -> None:
        del exception  # calls of other parts may have been executed
        self._whole.set_exception(to_exception(CUT_OFF))
