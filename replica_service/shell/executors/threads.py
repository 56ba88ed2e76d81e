"""Runs `def` methods in threads of this replica.

Purpose: a thread takes whole runs, turns and batches and executes call after call, because a switch of threads costs
more than most calls. The number of threads: a thread wakes another one only if calls are known to be slow (they wait,
or compute without the interpreter's lock); otherwise one works alone, and a check every `LOOK_S` wakes more if it is
slow. Many threads with quick calls would only compete for the interpreter. Outcomes return by a relay.
Invariants: calls of a StartTurn run one after another, in one thread; there are never more threads than calls may run
at once, nor more than `MAX_THREADS`; no call starts whose link is not fresh; every outcome is delivered exactly once,
as is the end of each piece of work.
Owner: the engine. `start` and `close` are called on its loop; `_lock` guards the queue and the numbers of workers.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextvars import copy_context
from inspect import isawaitable
from typing import Any

from replica_service.core.events import BatchEnded, CallsEnded, TurnEnded, WorkReturned
from replica_service.core.failures import LATE
from replica_service.core.runs import ReplicaRun, RouterPeer, StartTurn
from replica_service.core.work import Claim, Skip, StartBatch, StartCalls, TurnClaims, WorkCommand, claim, is_late
from replica_service.shell.executors.batches import BatchRun, is_of
from replica_service.shell.executors.protocol import HandlerEnvironment, Outcome, Unsendable, deliver, encoded
from replica_service.shell.executors.relay import OutcomeRelay
from replica_service.shell.handler.call_context import SinglePlace, ThreadPlace, base_context, batch_place
from replica_service.shell.telemetry import traced_batch
from slotmesh.errors import Failure
from slotmesh.handlers.context import asking, current_place
from slotmesh.logs import get_logger

MAX_THREADS = 1024
SLOW_S = 0.0001
"""Calls with a longer mean time get a thread each."""
LOOK_S = 0.001
"""How often the progress of the threads is checked."""
SLOW_BATCH_S = 0.001
"""After a batch of this duration, the loop waits until the next one has begun."""
HAND_OVER_S = 0.0002
"""The upper bound of that wait."""

_log = get_logger(__name__)


class _Stint:
    """Other work of handlers that needs a thread."""

    __slots__ = ("run",)

    def __init__(self, run: Callable[[], None]) -> None:
        self.run = run


class ThreadExecutor:
    """Executes work of `def` methods."""

    def __init__(
        self, environment: HandlerEnvironment, max_threads: Callable[[], int], wait_for: Callable[[Awaitable[Any]], Any]
    ) -> None:
        """`max_threads` is asked when a thread would be started.

        `wait_for` is called in a thread with an awaitable that a method has returned: it waits for its result.
        """
        self._methods, self._sink, self._errors, self._now = environment
        self._max_threads = max_threads
        self._wait_for = wait_for
        self._loop = asyncio.get_running_loop()
        self._context = base_context()
        """The context that threads start from, which is never that of a call."""
        self._lock = threading.Lock()
        self._turns = TurnClaims(threading.Lock())
        self._sleepers: list[threading.Lock] = []
        """Locks that idle workers wait for. The latest is last and is woken first, since its memory is cached."""
        self._queue: deque[WorkCommand | _Stint] = deque()
        self._threads = 0
        self._waking = 0
        """Workers that were woken or started and have not read the queue yet."""
        self._taken = 0
        """Total of calls, turns and batches taken from the queue."""
        self._mean_s = 0.0
        """Mean time of the latest calls; single long ones count as `2 * SLOW_S`. Written without the lock: a hint."""
        self._look: asyncio.TimerHandle | None = None
        self._taken_at_look = 0
        self._is_closed = False
        self._is_short = False
        """Whether a thread could not be started, and that was logged."""
        self._at_work = threading.Lock()
        """Released when a worker has taken work; to wait for that it is acquired twice."""
        self._relay = OutcomeRelay(self._sink, self._loop)
        self._hands_over = False
        """A long batch has ended: the loop lets the next one begin before it delivers."""

    def start(self, work: WorkCommand) -> None:
        self._enqueue(work)

    def step(self, stint: Callable[[], None]) -> None:
        """Calls `stint` once in a thread. The caller holds a permit; `stint` must not raise."""
        self._enqueue(_Stint(stint))

    def _enqueue(self, work: WorkCommand | _Stint) -> None:
        with self._lock:
            self._queue.append(work)
            if not self._waking:
                self._wake(1)
        if self._hands_over:
            self._hand_over()
        if self._look is None:
            self._taken_at_look = self._taken
            self._look = self._loop.call_later(LOOK_S, self._look_after)

    def hold(self, turn: StartTurn) -> None:
        self._turns.hold(turn)

    def recall(self, is_wanted: Callable[[ReplicaRun], bool]) -> list[StartCalls | StartBatch]:
        with self._lock:
            recalled = [
                work for work in self._queue if isinstance(work, StartCalls | StartBatch) and is_of(work, is_wanted)
            ]
            for work in recalled:
                self._queue.remove(work)
            return recalled

    def cancel(self, link: RouterPeer, ranges: Iterable[tuple[int, int]]) -> None:
        """Does nothing: a thread cannot be interrupted."""

    def abandon(self, link: RouterPeer) -> None:
        """Likewise."""

    def cut_off(self) -> None:
        """Likewise."""

    async def close(self) -> None:
        """Threads end with the call they are in; a call that never ends does not keep the process."""
        if self._look is not None:
            self._look.cancel()
        with self._lock:
            self._is_closed = True
            self._queue.clear()
            while self._sleepers:
                self._sleepers.pop().release()

    # -- on the loop -----------------------------------------------------------------------------------------------

    def _look_after(self) -> None:
        """Wakes as many workers again if calls are left and the current ones are slow."""
        self._look = None
        with self._lock:
            if not self._queue:
                return
            taken = self._taken - self._taken_at_look
            self._taken_at_look = self._taken
            if taken * SLOW_S < LOOK_S and not self._waking:
                self._wake(max(1, self._threads - len(self._sleepers)))
        self._look = self._loop.call_later(LOOK_S, self._look_after)

    def _hand_over(self) -> None:
        """Lets the worker that was woken have the interpreter, before all else that the loop has to do, once.

        A thread that holds the interpreter's lock keeps it for 5 ms or until it waits, and the worker needs it to
        start.
        """
        self._hands_over = False
        with self._lock:
            if not self._queue or not self._waking:
                return
            self._at_work.acquire(blocking=False)
        self._at_work.acquire(timeout=HAND_OVER_S)

    # -- in a thread -----------------------------------------------------------------------------------------------

    def _wake(self, count: int) -> None:
        """Under the lock: that many more workers should look at the queue."""
        if self._is_closed:
            return
        idle = min(count, len(self._sleepers))
        self._waking += idle
        for _ in range(idle):
            self._sleepers.pop().release()
        room = min(self._max_threads(), MAX_THREADS) - self._threads
        for _ in range(min(count - idle, room)):
            try:
                name, context = f"handler-{self._threads + 1}", self._context.copy()
                threading.Thread(target=context.run, args=(self._serve,), name=name, daemon=True).start()
            except RuntimeError as error:  # no further threads are available: the existing ones continue
                self._say_short(error)
                return
            self._waking += 1
            self._threads += 1

    def _say_short(self, error: RuntimeError) -> None:
        """Tries again to start threads for waiting calls."""
        if not self._is_short:
            self._is_short = True
            _log.error("threads cannot be started, so calls wait", threads=self._threads, exc_info=error)

    def _serve(self) -> None:
        is_new = True
        wanted = threading.Lock()
        wanted.acquire()  # its worker sleeps by acquiring it again
        place = ThreadPlace(self._now)
        current_place.set(place)
        while (taken := self._take(wanted, is_new=is_new)) is not None:
            is_new = False
            work, index, found = taken
            if isinstance(work, _Stint):
                began = self._now()
                work.run()
                self._took(self._now() - began)
            elif isinstance(work, StartCalls):
                self._execute_call(work, index, found, place)
            elif isinstance(work, StartTurn):
                self._execute_turn(work, place)
            else:
                self._execute_batch(work)
            place.run = None
            del taken, work  # a sleeping thread must not keep a call alive

    def _take(self, wanted: threading.Lock, *, is_new: bool) -> tuple[WorkCommand | _Stint, int, Claim] | None:
        """The next call of a StartCalls, with its index and claim, or a whole turn, batch or stint; None at the end.

        Work that was taken has started, or goes back: it cannot be recalled.
        """
        with self._lock:
            if is_new:
                self._waking -= 1
            while not self._queue:
                if self._is_closed:
                    return None
                self._sleepers.append(wanted)
                self._lock.release()
                wanted.acquire()  # the thread that wakes it takes it off the sleepers
                self._lock.acquire()
                self._waking -= 1
            work = self._queue[0]
            index, found = 0, None
            if isinstance(work, StartCalls):
                index, found = work.lo, claim(work.run, work.lo, work.hi, self._now())
                if found is not None:
                    work.lo = found.hi if isinstance(found, Skip) else index + 1
            if found is None or not isinstance(work, StartCalls) or work.lo == work.hi:
                self._queue.popleft()
            self._taken += 1
            if self._at_work.locked():
                self._at_work.release()
            if self._queue and self._mean_s > SLOW_S and not self._waking:
                self._wake(1)
            return work, index, found

    def _execute_call(self, work: StartCalls, index: int, found: Claim, place: ThreadPlace) -> None:
        run, relay = work.run, self._relay
        if found is None:
            relay.post(WorkReturned(work))
        elif isinstance(found, Skip):
            relay.failed(run, index, found.hi - index, found.failure)
            relay.post(CallsEnded(run, found.hi - index))
        elif not self._execute(run, index, found.until, place, ended=1):
            relay.post(WorkReturned(StartCalls(run, index, index + 1)))

    def _execute_turn(self, turn: StartTurn, place: ThreadPlace) -> None:
        run, index = turn.run, turn.lo
        while (found := self._turns.claim(turn, index, self._now(), most=1)) is not None:
            if isinstance(found, Skip):
                self._relay.failed(run, index, found.hi - index, found.failure)
                index = found.hi
            elif self._execute(run, index, found.until, place, ended=0):
                index += 1
            else:
                break
        self._relay.post(TurnEnded(turn, index))

    def _execute(self, run: ReplicaRun, index: int, until: float, place: ThreadPlace, *, ended: int) -> bool:
        """Executes a claimed call. Returns False if it was too late for it. `ended`: see `OutcomeRelay.payloads`."""
        place.run, place.index = run, index
        outcome = copy_context().run(self._outcome_of, run, index, until)
        if outcome is None:
            return False
        if isinstance(outcome, bytes):
            self._relay.payloads(run, index, (outcome,), ended=ended)
        else:
            self._relay.failed(run, index, 1, outcome)
            if ended:
                self._relay.post(CallsEnded(run, ended))
        return True

    def _outcome_of(self, run: ReplicaRun, index: int, until: float) -> bytes | Failure | None:
        """Executes the call in a context of its own. Returns its outcome; None if it was too late for it."""
        outcome: bytes | Failure
        began = self._now()
        if asking.is_known:
            current_place.set(SinglePlace(run, index, self._now))
        if (traced := run.traced) is not None:
            traced.enter()
        try:
            method = self._methods[run.options.method]
            args, kwargs = method.opened(run.options.content_type, run.payloads[index])
            began = self._now()
            if began >= until:
                return None
            outcome = self._encoded(run, method.function(*args, **kwargs))
            if is_late(run, self._now()):
                outcome = LATE
        except BaseException as error:  # noqa: BLE001 - nothing that a handler raises may end the thread
            outcome = self._errors.failure_of(error, run.options.method)
        finally:
            if traced is not None:
                traced.leave()
        self._took(self._now() - began)
        return outcome

    def _encoded(self, run: ReplicaRun, value: Any) -> bytes:
        """Encodes the result of a call; awaits it first if it is awaitable. Raises Unsendable."""
        try:
            payload = encoded(run, value)
            if not run.options.no_reply or not isawaitable(value):
                return payload
        except Unsendable:
            if not isawaitable(value):
                raise
        return encoded(run, self._wait_for(value))

    def _took(self, seconds: float) -> None:
        self._mean_s += (min(seconds, 2 * SLOW_S) - self._mean_s) / 8

    # -- batches, in a thread ----------------------------------------------------------------------------------------

    def _execute_batch(self, batch: StartBatch) -> None:
        left = BatchRun(batch, self._methods[batch.method], self._now)
        outcomes = list[Outcome]()
        is_left = None if left.is_to_return else True
        while is_left:
            is_left = copy_context().run(self._invoke, left, outcomes)
        if is_left is None:
            self._relay.post(WorkReturned(batch))
        else:
            self._relay.call(self._batch_ended, batch, outcomes)

    def _invoke(self, left: BatchRun, outcomes: list[Outcome]) -> bool | None:
        """Executes the next invocation, in a context of its own. Returns False if none is left.

        None: nothing has begun, and the batch returns to the scheduler.
        """
        invocation, method = left.next(), left.method
        if left.is_to_return:
            return None
        outcomes += left.take_failed()
        if invocation is None:
            return False
        began = self._now()
        left.batch.runner = threading.get_ident()
        current_place.set(batch_place(invocation.parts, self._now))
        traced = traced_batch(invocation.parts, began)
        returned: Sequence[Any] | Failure
        try:
            returned = left.begin(invocation)
            if isawaitable(returned):
                returned = self._wait_for(returned)
            returned = invocation.checked(returned, method)
        except BaseException as error:  # noqa: BLE001 - nothing that a handler raises may end the thread
            returned = self._errors.failure_of(error, method.name)
        finally:
            if traced is not None:
                traced.leave()
        self._took(self._now() - began)
        outcomes += invocation.outcomes(returned, method, self._errors.failure_of)
        return True

    def _batch_ended(self, batch: StartBatch, outcomes: Sequence[Outcome]) -> None:
        """Delivers, on the loop. The next batch starts first, in this very step: nothing waits for the outcomes.

        But lanes do, which may stop at a failure.
        """
        if not batch.lanes:
            self._hands_over = batch.began is not None and self._now() - batch.began >= SLOW_BATCH_S
            self._sink.post(BatchEnded(batch))
            self._hands_over = False
        deliver(outcomes, self._sink)
        if batch.lanes:
            self._sink.post(BatchEnded(batch))
