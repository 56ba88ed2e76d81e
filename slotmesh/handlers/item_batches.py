"""Single items for a batch method, from within its own process: `await self.classify(image)` in another method.

Purpose: items that calls of a handler pass to one of its batch methods become batches, by the same settings as calls of
clients.
Invariants: items leave in the order in which they came, each in one batch; those of one batch have the same parameters.
A cancelled item is removed, unless a batch has it. Everything happens on one event loop.
Owner: the decorated function, one gathering for each instance and event loop, for as long as it has something to do.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextvars import Context, copy_context
from math import isfinite
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from slotmesh.handlers.batch_settings import BatchControl, BatchState, RunningBatch
from slotmesh.handlers.context import BatchPlace, CallContext, asking, current_place
from slotmesh.user_code import described, is_exception

BatchMethod = Callable[..., Coroutine[Any, Any, Sequence[Any]]]
"""Takes lists."""


class Item(NamedTuple):
    """The item of one caller."""

    outcome: asyncio.Future[Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    weight: float
    came_at: float
    """Seconds of the event loop's clock."""
    context: Context
    call: CallContext | None
    """Of the call that passes it; None outside of calls."""

    @property
    def shape(self) -> tuple[object, ...]:
        """The parameters that are given."""
        return len(self.args), *sorted(self.kwargs)


class ItemGathering:
    """Items for one method of one instance, on one event loop."""

    def __init__(self, method: BatchMethod, name: str, control: BatchControl, on_idle: Callable[[], None]) -> None:
        """`on_idle` is called when there is nothing to do any more."""
        self._method = method
        self._name = name
        self._control = control
        self._on_idle = on_idle
        self._loop = asyncio.get_running_loop()
        self._items: deque[Item] = deque()
        self._running: dict[asyncio.Task[None], tuple[int, float]] = {}
        """Batches: how many items each has, and when it began."""
        self._timer: asyncio.TimerHandle | None = None

    def add(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> asyncio.Future[Any]:
        """The future result of one item. Raises ValueError if it is too heavy for any batch."""
        weight = self._weight_of(args, kwargs)
        outcome = self._loop.create_future()
        outcome.add_done_callback(self._is_over)
        self._items.append(Item(outcome, args, kwargs, weight, self._loop.time(), copy_context(), _call()))
        self._pump()
        return outcome

    # -- as a host of batches: on any thread -------------------------------------------------------------------------

    def batch_state(self) -> BatchState:
        now = self._loop.time()
        running = [
            RunningBatch(calls=calls, running_s=now - since, stack="") for calls, since in list(self._running.values())
        ]
        return BatchState(is_alive=not self._loop.is_closed(), waiting=len(self._items), running=running)

    def settings_changed(self) -> None:
        if self._loop.is_closed():  # in the middle of something
            self._on_idle()
        else:
            self._loop.call_soon_threadsafe(self._pump)

    # -- batches -----------------------------------------------------------------------------------------------------

    def _is_over(self, outcome: asyncio.Future[Any]) -> None:
        """An item has its result, or was cancelled."""
        if outcome.cancelled():
            self._pump()

    def _pump(self) -> None:
        """Cuts the batches that are full and may run, and sets a timer for the next one."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while len(self._running) < self._control.max_concurrent_batches and (items := self._next_items()):
            if len(items) == len(self._items) and sum(each.weight for each in items) < self._control.max_batch_size:
                cut_at = items[0].came_at + self._control.batch_wait_timeout_s
                self._timer = self._loop.call_at(cut_at, self._on_time, items[0])
                break
            self._begin(items)
        if not self._running and all(each.outcome.done() for each in self._items):
            self._on_idle()

    def _on_time(self, first: Item) -> None:
        """The first item has waited long enough."""
        self._timer = None
        items = self._next_items()
        if items and items[0] is first:
            self._begin(items)
        self._pump()

    def _next_items(self) -> list[Item]:
        """Those of the next batch, which stay in the queue. Cancelled ones are dropped."""
        if any(each.outcome.done() for each in self._items):
            self._items = deque(each for each in self._items if not each.outcome.done())
        items: list[Item] = []
        weight = 0.0
        for each in self._items:
            weight += each.weight
            if items and (weight > self._control.max_batch_size or each.shape != items[0].shape):
                break
            items.append(each)
        return items

    def _begin(self, items: list[Item]) -> None:
        for _ in items:
            self._items.popleft()
        task = self._loop.create_task(self._run(items), name=f"batch of {self._name}", context=items[0].context.copy())
        self._running[task] = len(items), self._loop.time()
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        del self._running[task]
        self._pump()

    async def _run(self, items: list[Item]) -> None:
        calls = [each.call for each in items if each.call is not None]
        current_place.set(BatchPlace(calls) if len(calls) == len(items) else None)
        args = [list(column) for column in zip(*(each.args for each in items), strict=True)]
        kwargs = {name: [each.kwargs[name] for each in items] for name in items[0].kwargs}
        try:
            results = list(await self._method(*args, **kwargs))
            if len(results) != len(items):
                raise TypeError(f"{self._name} returned {len(results)} results for {len(items)} items")
        except BaseException as error:
            if _is_cancelled(error):
                for each in items:
                    each.outcome.cancel()
                raise
            results = [error] * len(items)
        for each, result in zip(items, results, strict=True):
            if each.outcome.done():
                continue
            if is_exception(result):
                each.outcome.set_exception(self._raised(result))
            else:
                each.outcome.set_result(result)

    def _raised(self, error: BaseException) -> BaseException:
        """The error for the callers. One that would end more than a call, or an iteration, becomes a cause."""
        if isinstance(error, Exception) and not isinstance(error, StopIteration | StopAsyncIteration):
            return error
        raised = RuntimeError(f"{self._name} raised {described(error)}")
        raised.__cause__ = error
        return raised

    def _weight_of(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> float:
        size_fn = self._control.batch_size_fn
        if size_fn is None:
            return 1.0
        weight = float(size_fn(*args, **kwargs))
        most = self._control.max_batch_size
        if not isfinite(weight) or weight < 0:
            raise ValueError(f"{self._name}: batch_size_fn must say a finite number that is not negative, got {weight}")
        if weight > most:
            raise ValueError(f"{self._name}: the item weighs {weight}, and a batch at most {most} (max_batch_size)")
        return weight


class Gatherings:
    """Those of one decorated function."""

    def __init__(self, function: BatchMethod, control: BatchControl, *, is_method: bool) -> None:
        """`is_method`: the first argument is the instance, or the class."""
        self._function = function
        self._control = control
        self._is_method = is_method
        self._by_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[int, ItemGathering]] = WeakKeyDictionary()
        """By identity of the instance, which lives as long as its gathering does."""

    def takes_whole(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        """Whether these are lists, or arrays: a batch. Raises TypeError where some are, and others are not."""
        given = [*(args[1:] if self._is_method else args), *kwargs.values()]
        whole = [isinstance(each, list) or hasattr(type(each), "__array_interface__") for each in given]
        if any(whole) and not all(whole):
            raise TypeError(
                f"{self._function.__qualname__}: either all arguments are lists, which are a batch, or none is, and "
                "they are one item of it"
            )
        return all(whole)

    def add(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> asyncio.Future[Any]:
        """The result of one item."""
        owner = args[0] if self._is_method else None
        by_owner = self._by_loop.setdefault(asyncio.get_running_loop(), {})
        gathering = by_owner.get(id(owner))
        if gathering is None:
            gathering = by_owner[id(owner)] = self._begin(owner, by_owner)
        return gathering.add(args[1:] if self._is_method else args, kwargs)

    def _begin(self, owner: Any, by_owner: dict[int, ItemGathering]) -> ItemGathering:
        function = self._function

        def method(*args: Any, **kwargs: Any) -> Coroutine[Any, Any, Sequence[Any]]:
            return function(owner, *args, **kwargs) if self._is_method else function(*args, **kwargs)

        def end() -> None:
            if by_owner.get(id(owner)) is gathering:
                del by_owner[id(owner)]
                self._control.detach(gathering)

        gathering = ItemGathering(method, function.__qualname__, self._control, end)
        self._control.attach(gathering)
        return gathering


def _is_cancelled(error: BaseException) -> bool:
    """Whether this task was cancelled, and the method has not raised such an error by itself."""
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0


def _call() -> CallContext | None:
    """The call that is being executed; None if there is none, or it is a whole batch."""
    place = current_place.get()
    if place is None:
        return None
    asking.is_known = True
    try:
        return place.context()
    except RuntimeError:
        return None
