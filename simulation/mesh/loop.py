"""The event loop of one simulated process.

Purpose: asyncio as the services know it, on virtual time: each node has a loop of its own, and the timeline lets them
take turns. To crash or to pause a node is then to stop giving its loop turns.
Invariants: while a node is paused nothing of it runs, and its timers fire late; once it is dead nothing of it ever runs
again, no `finally` either. A turn takes a little time, so that no loop can stop time by turning in circles.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from asyncio.events import _set_running_loop
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from contextvars import copy_context
from functools import partial
from random import Random
from typing import Any, Final

from simulation.mesh.timeline import Timeline

TURN_S: Final = 8e-6
"""What a turn of a loop takes, at least, and at most three times as much."""
CALLBACK_S: Final = 2e-6
"""What each callback takes besides."""

THREAD_S: Final = 2e-3
"""How long work in a thread takes. It reads what there is when it begins, and its result arrives that much later."""

_MANY_TASKS: Final = 64
"""So many are kept before those that have ended are forgotten."""


def _next_number(what: asyncio.Future[Any]) -> int:
    """Each run counts from 1, whatever ran before in this process."""
    loop: Any = what.get_loop()
    number: int = next(loop.timeline.numbers)
    return number


class SimTask(asyncio.Task[Any]):
    """A task whose hash does not depend on where it lies in memory: sets of tasks have the same order every time."""

    number = 0

    def __hash__(self) -> int:
        self.number = self.number or _next_number(self)
        return self.number

    def __eq__(self, other: object) -> bool:
        return self is other


class SimFuture(asyncio.Future[Any]):
    """Likewise."""

    number = 0

    def __hash__(self) -> int:
        self.number = self.number or _next_number(self)
        return self.number

    def __eq__(self, other: object) -> bool:
        return self is other


class Handle:
    """What `call_soon` gives."""

    __slots__ = ("args", "callback", "context")

    def __init__(self, callback: Callable[..., object], args: tuple[Any, ...], context: contextvars.Context) -> None:
        self.callback: Callable[..., object] | None = callback
        """None: cancelled."""
        self.args = args
        self.context = context

    def cancel(self) -> None:
        self.callback = None
        self.args = ()

    def cancelled(self) -> bool:
        return self.callback is None


class TimerHandle(Handle):
    """What `call_later` gives."""

    __slots__ = ("_when",)

    def __init__(
        self, callback: Callable[..., object], args: tuple[Any, ...], context: contextvars.Context, when: float
    ) -> None:
        super().__init__(callback, args, context)
        self._when = when

    def when(self) -> float:
        return self._when


class NodeLoop(asyncio.AbstractEventLoop):
    """Turns when the timeline says so."""

    running: NodeLoop | None = None
    """The loop whose turn it is, of all loops."""

    def __init__(self, timeline: Timeline, name: str, chance: Random, *, zero: float = 0.0) -> None:
        """`zero`: what the monotonic clock of this node says at the beginning. Those of two nodes never agree."""
        self.name = name
        self.timeline = timeline
        self.zero = zero
        self.is_dead = False
        self.is_paused = False
        self._chance = chance
        self._ready: deque[Handle] = deque()
        self._late: deque[Handle] = deque()
        """Timers that have come due while the node was paused."""
        self._turn_due = False
        self._free_at = 0.0
        self._context = contextvars.Context()
        """In which the network calls."""
        self.on_error: Callable[[dict[str, Any]], None] = lambda _context: None
        self._tasks: list[SimTask] = []
        """All that have not ended, and some that have."""
        self._many_tasks = _MANY_TASKS

    # -- the life of the process -----------------------------------------------------------------------------------

    def pause(self) -> None:
        """SIGSTOP."""
        self.is_paused = True

    def resume(self) -> None:
        """SIGCONT. What had come for the node, and what was due, is found in an order of chance."""
        self.is_paused = False
        if self._chance.random() < 0.5:
            self._ready.extendleft(reversed(self._late))
        else:
            self._ready.extend(self._late)
        self._late.clear()
        self._wake()

    def kill(self) -> None:
        """SIGKILL. Tasks are kept until the simulation ends: collected, they would clean up."""
        if not self.is_dead:
            self.is_dead = True
            self._ready.clear()
            self._late.clear()

    def left_behind(self) -> list[Any]:
        """The coroutines of tasks that had not ended when it was killed, and that have not ended since."""
        self._forget_tasks()
        found = []
        for task in self._tasks:
            asyncio.tasks._unregister_task(task)
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            work: Any = task.get_coro()
            state = inspect.getcoroutinestate(work)
            if state == inspect.CORO_CREATED:
                work.close()  # it has not begun, of which Python would warn
            elif state != inspect.CORO_CLOSED:
                found.append(work)
        return found

    # -- what asyncio calls ----------------------------------------------------------------------------------------

    def time(self) -> float:
        return self.timeline.now + self.zero

    def call_soon(  # type: ignore[override]  # a handle of our own
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> Handle:
        handle = Handle(callback, args, context or copy_context())
        if not self.is_dead:
            self._ready.append(handle)
            if not self._turn_due:
                self._wake()
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> TimerHandle:
        return self.call_at(self.timeline.now + self.zero + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> TimerHandle:
        handle = TimerHandle(callback, args, context or copy_context(), when)
        if not self.is_dead:
            self.timeline.at(when - self.zero, self._due, handle)
        return handle

    def run_in_executor(  # type: ignore[override]
        self, _executor: None, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """Runs the function now, without a thread: the same seed shows the same."""
        future = self.create_future()
        try:
            outcome = partial(future.set_result, func(*args))
        except Exception as error:  # noqa: BLE001 - whatever the function raises reaches who awaits it
            outcome = partial(future.set_exception, error)
        self.call_later(THREAD_S, lambda: future.done() or outcome())
        return future

    def create_future(self) -> asyncio.Future[Any]:
        return SimFuture(loop=self)

    def create_task(
        self,
        coro: Generator[Any, None, Any] | Coroutine[Any, Any, Any],
        *,
        name: str | None = None,
        context: contextvars.Context | None = None,
    ) -> asyncio.Task[Any]:
        task = SimTask(coro, loop=self, name=name or "task", context=context)
        self._tasks.append(task)
        if len(self._tasks) >= self._many_tasks:
            self._forget_tasks()
            self._many_tasks = 2 * len(self._tasks) + _MANY_TASKS
        return task

    def _forget_tasks(self) -> None:
        """asyncio, too, forgets those that have ended: nothing of a run is collected as long as it lasts."""
        for task in self._tasks:
            if task.done():
                asyncio.tasks._unregister_task(task)
        self._tasks = [task for task in self._tasks if not task.done()]

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return NodeLoop.running is self

    def is_closed(self) -> bool:
        return self.is_dead

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if not self.is_dead:
            self.on_error(context)

    # -- turns -----------------------------------------------------------------------------------------------------

    def deliver(self, callback: Callable[..., object], *args: Any) -> None:
        """As `call_soon`, from outside: the network has something for this process."""
        self.take(self.handle(callback, args))

    def handle(self, callback: Callable[..., object], args: tuple[Any, ...]) -> Handle:
        """Something for this process, which `take` gives to it."""
        return Handle(callback, args, self._context)

    def take(self, handle: Handle) -> None:
        """It is done soon."""
        if not self.is_dead:
            self._ready.append(handle)
            if not self._turn_due:
                self._wake()

    def _due(self, handle: Handle) -> None:
        if self.is_dead or handle.callback is None:
            return
        if self.is_paused:
            self._late.append(handle)
            return
        self._ready.append(handle)
        if not self._turn_due:
            self._wake()

    def _wake(self) -> None:
        if self._ready and not self.is_paused and not self._turn_due:
            self._turn_due = True
            self.timeline.at(self._free_at, self._turn)

    def _turn(self, _: None) -> None:
        """One turn, and more of them as long as no one else is next."""
        timeline, ready, chance = self.timeline, self._ready, self._chance.random
        NodeLoop.running = self
        _set_running_loop(self)
        try:
            while not (self.is_dead or self.is_paused):
                count = len(ready)
                for _each in range(count):
                    if not ready:  # killed in the act
                        break
                    handle = ready.popleft()
                    if handle.callback is None:
                        continue
                    try:
                        handle.context.run(handle.callback, *handle.args)
                    except (SystemExit, KeyboardInterrupt):
                        raise
                    except BaseException as error:  # noqa: BLE001 - as asyncio does
                        self.call_exception_handler({"message": "a callback failed", "exception": error})
                self._free_at = timeline.now + TURN_S * (1.0 + 2.0 * chance()) + CALLBACK_S * count
                if not ready or not timeline.skip_to(self._free_at):
                    break
        finally:
            NodeLoop.running = None
            self._turn_due = False
        self._wake()


def close_generator(generator: Any) -> None:
    """The finalizer of asynchronous generators that nobody iterates any more."""
    if (loop := NodeLoop.running) is not None:
        loop.call_soon(loop.create_task, generator.aclose())


def node_loop(timeline: Timeline, name: str, chance: Random, *, zero: float = 0.0) -> NodeLoop:
    """A loop. What it has not, as sockets and signals, nobody on it uses."""
    return NodeLoop(timeline, name, chance, zero=zero)  # type: ignore[abstract]
