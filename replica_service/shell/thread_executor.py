"""Runs `def` methods in threads of this replica.

Purpose: whole runs and turns pass to a thread, which takes call after call: a hop costs more than most calls.
How many threads take part: one more wakes the next only where calls are known to be slow (they wait, or compute without
the interpreter's lock); otherwise one works alone, and a look every `LOOK_S` wakes more if it gets on slowly. Many
threads with quick calls would only fight for the interpreter. Outcomes come back in bursts: the loop is woken once,
however many there are.
Invariants: calls of a StartTurn run one after another, in one thread; there are never more threads than calls may run
at once, nor more than `MAX_THREADS`; no call starts whose link is not fresh; every outcome is told exactly once, as is
the end of each piece of work.
Owner: the engine. `start` and `close` are called on its loop; `_lock` guards the queue and the numbers of workers.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from replica_service.core.calls import Link, Run, StartTurn
from replica_service.core.commands import StartBatch, StartCalls, Work
from replica_service.core.lane_history import is_late
from replica_service.core.turns import Claim, Skip, Turns, claim, may_begin
from replica_service.core.verdicts import LATE
from replica_service.shell.batches import Invocation, invocations, is_of
from replica_service.shell.handler_errors import HandlerErrors, unsendable
from replica_service.shell.lateness import in_time
from replica_service.shell.methods import Method
from replica_service.shell.places import SinglePlace, ThreadPlace, batch_place
from replica_service.shell.sink import Sink
from slotmesh.codec import encode_each, encoder
from slotmesh.errors import Failure
from slotmesh.handlers.context import asking, current_place
from slotmesh.telemetry.log import get_logger

MAX_THREADS = 1024
SLOW_S = 0.0001
"""Calls that take longer than this in the mean are worth a thread each."""
LOOK_S = 0.001
"""How often somebody looks whether the threads get on."""
SLOW_BATCH_S = 0.001
"""After a batch of this length, the loop waits until the next one is under way."""
HAND_OVER_S = 0.0002
"""But no longer than this."""

_log = get_logger(__name__)


class _Stint:
    """Something else that handlers need a thread for."""

    __slots__ = ("run",)

    def __init__(self, run: Callable[[], None]) -> None:
        self.run = run


Done = tuple[Work, Run | None, int, Any]
"""Work, run, index of the first call, outcome: a payload, payloads, a (count, Failure), or None for the end.

Without a run it is the outcomes of a whole batch, each as (run, index, outcome), or `_UNSTARTED`: the work comes back.
"""
_UNSTARTED = "unstarted"


class ThreadExecutor:
    """Executes work of `def` methods."""

    def __init__(
        self,
        methods: Mapping[str, Method],
        sink: Sink,
        errors: HandlerErrors,
        now: Callable[[], float],
        max_threads: Callable[[], int],
    ) -> None:
        """`max_threads` is asked when a thread would be started."""
        self._methods = methods
        self._sink = sink
        self._errors = errors
        self._now = now
        self._max_threads = max_threads
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._turns = Turns(threading.Lock())
        self._sleepers: list[threading.Lock] = []
        """What idle workers wait for, the latest last: who was at work just now has its memory at hand."""
        self._queue: deque[Work | _Stint] = deque()
        self._threads = 0
        self._waking = 0
        """Workers that were woken or started and have not looked at the queue yet."""
        self._taken = 0
        """Calls, turns and batches taken from the queue, ever."""
        self._mean_s = 0.0
        """Mean time of the latest calls; single long ones count as `2 * SLOW_S`. Written without the lock: a hint."""
        self._look: asyncio.TimerHandle | None = None
        self._taken_at_look = 0
        self._is_closed = False
        self._is_short = False
        """A thread could not be started, which was told."""
        self._hands_over = False
        """A batch has ended that took long: the next one is not to wait for the interpreter."""
        self._at_work = threading.Lock()
        """Released when a worker has taken work; who waits for that acquires it twice."""
        self._done: deque[Done] = deque()
        self._is_posted = False

    def start(self, work: Work) -> None:
        self._enqueue(work)

    def step(self, stint: Callable[[], None]) -> None:
        """Has a thread call this, once, soon. Whoever asks holds a permit; it raises nothing."""
        self._enqueue(_Stint(stint))

    def _enqueue(self, work: Work | _Stint) -> None:
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

    def recall(self, is_wanted: Callable[[Run], bool]) -> list[StartCalls | StartBatch]:
        with self._lock:
            recalled = [
                work for work in self._queue if isinstance(work, StartCalls | StartBatch) and is_of(work, is_wanted)
            ]
            for work in recalled:
                self._queue.remove(work)
            return recalled

    def cancel(self, link: Link, ranges: Iterable[tuple[int, int]]) -> None:
        """What runs goes on: nothing interrupts a thread."""

    def abandon(self, link: Link) -> None:
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
        """Wakes as many workers again where calls are left and those that are at it get on slowly."""
        self._look = None
        with self._lock:
            if not self._queue:
                return
            taken = self._taken - self._taken_at_look
            self._taken_at_look = self._taken
            if taken * SLOW_S < LOOK_S and not self._waking:
                self._wake(max(1, self._threads - len(self._sleepers)))
        self._look = self._loop.call_later(LOOK_S, self._look_after)

    def _collect(self) -> None:
        """Takes what workers have put down, joining results of neighbours."""
        self._is_posted = False  # before the first look: whoever puts something down later posts again
        done = self._done
        while done:
            work, run, index, outcome = done.popleft()
            if type(outcome) is bytes:
                payloads = [outcome]
                while done and done[0][1] is run and done[0][2] == index + len(payloads) and type(done[0][3]) is bytes:
                    payloads.append(done.popleft()[3])
                outcome = payloads
            self._tell(work, run, index, outcome)

    def _tell(self, work: Work, run: Run | None, index: int, outcome: Any) -> None:
        sink = self._sink
        if run is None:
            if outcome is _UNSTARTED and not isinstance(work, StartTurn):
                sink.returned(work)
            elif isinstance(work, StartTurn):
                sink.turn_ended(work, index)
            elif isinstance(work, StartBatch):
                self._tell_batch(work, outcome)
            return
        if isinstance(outcome, list):
            count = len(outcome)
            sink.payloads(run, index, outcome)
        else:
            count, failure = outcome
            sink.failed(run, index, count, failure)
        if isinstance(work, StartCalls):
            sink.calls_ended(run, count)

    def _tell_batch(self, batch: StartBatch, outcomes: Sequence[tuple[Run, int, Any]]) -> None:
        """The next batch starts before outcomes are seen to, in this very step of the loop: nothing waits for them.

        But lanes do, which may stop at a failure.
        """
        sink = self._sink
        if not batch.lanes:
            self._hands_over = batch.began is not None and self._now() - batch.began >= SLOW_BATCH_S
            sink.batch_ended(batch)
            self._hands_over = False
        for run, index, outcome in outcomes:
            if isinstance(outcome, list):
                sink.payloads(run, index, outcome)
            elif isinstance(outcome, bytes):
                sink.payloads(run, index, (outcome,))
            else:
                sink.failed(run, index, *outcome)
        if batch.lanes:
            sink.batch_ended(batch)

    def _hand_over(self) -> None:
        """Lets the worker that was woken have the interpreter, before all else that the loop has to do, once.

        Whoever holds the interpreter's lock keeps it for 5 ms or until it waits, and the worker needs it to go to work.
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
                threading.Thread(target=self._serve, name=f"handler-{self._threads + 1}", daemon=True).start()
            except RuntimeError as error:  # the machine has no more of them: those that there are go on
                self._say_short(error)
                return
            self._waking += 1
            self._threads += 1

    def _say_short(self, error: RuntimeError) -> None:
        """Calls wait for threads that could not be started. Whoever looks after them tries again."""
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
                current_place.set(place)
            place.run = None

    def _take(self, wanted: threading.Lock, *, is_new: bool) -> tuple[Work | _Stint, int, Claim] | None:
        """The next call of a StartCalls, with its index and claim, or a whole turn, batch or stint; None at the end.

        What was taken has started, or goes back: nobody recalls it.
        """
        with self._lock:
            if is_new:
                self._waking -= 1
            while not self._queue:
                if self._is_closed:
                    return None
                self._sleepers.append(wanted)
                self._lock.release()
                wanted.acquire()  # whoever wakes it takes it off the sleepers
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
        if found is None:
            self._put(work, None, 0, _UNSTARTED)
        elif isinstance(found, Skip):
            self._put(work, work.run, index, (found.hi - index, found.failure))
        elif self._execute(work, work.run, index, found.until, place) is None:
            self._put(StartCalls(work.run, index, index + 1), None, 0, _UNSTARTED)

    def _execute_turn(self, turn: StartTurn, place: ThreadPlace) -> None:
        run = turn.run
        index = turn.lo
        while (found := self._turns.claim(turn, index, self._now(), most=1)) is not None:
            if isinstance(found, Skip):
                self._put(turn, run, index, (found.hi - index, found.failure))
                index, has_failed = found.hi, True
            elif (has_result := self._execute(turn, run, index, found.until, place)) is None:
                break
            else:
                index, has_failed = index + 1, not has_result
            if has_failed and run.options.stop_generation:
                break  # the lane's next turn answers the rest
        self._put(turn, None, index, None)

    def _execute_batch(self, batch: StartBatch) -> None:
        method = self._methods[batch.batcher.method]
        if not may_begin(batch.parts, self._now()):
            self._put(batch, None, 0, _UNSTARTED)
            return

        outcomes: list[tuple[Run, int, Any]] = []

        def on_failed(run: Run, lo: int, count: int, failure: Failure) -> None:
            outcomes.append((run, lo, (count, failure)))

        def on_results(run: Run, lo: int, values: Sequence[Any]) -> None:
            try:
                if run.options.no_reply:
                    payloads = [b""] * len(values)
                else:
                    payloads = encode_each(run.options.content_type, values)
            except BaseException:  # noqa: BLE001 - a foreign object may fail in any way; each by itself, then
                outcomes.extend((run, index, self._encoded(run, value)) for index, value in enumerate(values, lo))
            else:
                outcomes.append((run, lo, payloads))

        for whole in invocations(batch, method, on_failed):
            began = self._now()
            invocation: Invocation | None = whole
            if batch.began is not None:
                invocation = in_time(whole, batch, method, began, on_failed)
            elif not may_begin(batch.parts, began):
                self._put(batch, None, 0, _UNSTARTED)
                return
            if invocation is None:
                continue
            batch.began = began
            batch.runner = threading.get_ident()
            current_place.set(batch_place(invocation.parts, self._now))
            try:
                returned = invocation.checked(invocation.call(method), method)
            except BaseException as error:  # noqa: BLE001 - nothing that a handler raises may end the thread
                returned = self._errors.failure_of(error, method.name)
            self._took(self._now() - began)
            invocation.deliver(returned, method, self._errors.failure_of, on_results, on_failed)
        self._put(batch, None, 0, outcomes)

    def _execute(self, work: Work, run: Run, index: int, until: float, place: ThreadPlace) -> bool | None:
        """Executes a call that was claimed; returns whether it has a result, or None where it was too late for it."""
        outcome: Any
        began = self._now()
        if asking.is_known:
            current_place.set(SinglePlace(run, index, self._now))
        else:
            place.run, place.index = run, index
        try:
            method = self._methods[run.options.method]
            args, kwargs = method.opened(run.options.content_type, run.payloads[index])
            began = self._now()
            if began >= until:
                return None
            outcome = self._encoded(run, method.function(*args, **kwargs))
            if is_late(run, self._now()) and type(outcome) is bytes:
                outcome = (1, LATE)
        except BaseException as error:  # noqa: BLE001 - nothing that a handler raises may end the thread
            outcome = (1, self._errors.failure_of(error, run.options.method))
        self._took(self._now() - began)
        self._put(work, run, index, outcome)
        return type(outcome) is bytes and len(outcome) <= run.max_result_bytes

    def _took(self, seconds: float) -> None:
        self._mean_s += (min(seconds, 2 * SLOW_S) - self._mean_s) / 8

    @staticmethod
    def _encoded(run: Run, value: Any) -> Any:
        if run.options.no_reply:
            return b""
        try:
            return encoder(run.options.content_type)(value)
        except BaseException as error:  # noqa: BLE001 - a foreign object may fail in any way when it is read
            return 1, unsendable(error)

    def _put(self, work: Work, run: Run | None, index: int, outcome: Any) -> None:
        self._done.append((work, run, index, outcome))
        if not self._is_posted:
            self._is_posted = True
            with contextlib.suppress(RuntimeError):  # the loop has ended: nobody wants to know
                self._loop.call_soon_threadsafe(self._collect)
