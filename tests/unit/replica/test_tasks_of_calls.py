"""What a handler keeps of its call's task can harm no call that comes later."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any, Final

import pytest

from slotmesh.codec import JSON, encode_arguments
from slotmesh.handlers import batch, deployment
from tests.unit.replica.hosting import hosting
from tests.unit.replica.ways_to_run import LANE, OWN_LOOP, OWN_LOOP_LANE, UNKEYED, WAYS, Way

pytestmark = pytest.mark.asyncio

COUNT: Final = 48

Task = asyncio.Task[Any]
HOLDERS: Final[dict[str, Callable[[Task], Any]]] = {
    "task": lambda task: task,
    "method": lambda task: task.cancel,
    "partial": lambda task: partial(task.cancel, "later"),
    "closure": lambda task: lambda: task,
    "weak": weakref.ref,
}
"""Ways to keep a task."""


def cancel(kept: Any) -> None:
    """Cancels what one of the holders keeps."""
    if isinstance(kept, asyncio.Task):
        kept.cancel()
    elif isinstance(kept, weakref.ref) or getattr(kept, "__name__", "") == "<lambda>":
        if (task := kept()) is not None:
            task.cancel()
    else:
        kept()


@deployment(max_ongoing=512)
class Keeps:
    """Calls keep their tasks; each call cancels those of calls that have ended."""

    def __init__(self, holder: str) -> None:
        self.hold = HOLDERS[holder]
        self.ended: list[Any] = []
        """Of calls that have ended."""

    def _begin(self) -> None:
        for kept in self.ended:
            cancel(kept)

    def _end(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.ended.append(self.hold(task))

    async def quick(self, number: int) -> int:
        self._begin()
        self._end()
        return number

    async def waits(self, number: int) -> int:
        task = asyncio.current_task()
        for _ in range(3):
            self._begin()
            await asyncio.sleep(0)
        async with asyncio.timeout(10):
            await asyncio.sleep(0.0001)
        self._begin()
        assert asyncio.current_task() is task
        self._end()
        return number

    async def some_wait(self, number: int) -> int:
        return await (self.waits if number % 3 == 1 else self.quick)(number)

    async def some_raise(self, number: int) -> int:
        await (self.waits if number % 3 == 1 else self.quick)(number)
        if number % 4 == 2:
            raise ValueError("no")
        return number

    @batch(max_batch_size=4, batch_wait_timeout_s=0.0)
    async def together(self, numbers: list[int]) -> list[int]:
        await self.some_wait(numbers[0])
        return numbers

    async def values(self, number: int) -> AsyncIterator[int]:
        self._begin()
        yield number
        await asyncio.sleep(0)
        self._begin()
        yield number
        self._end()


CELLS: Final = [
    *((way, method) for way in WAYS for method in ("quick", "waits", "some_wait", "some_raise")),
    *((way, "together") for way in (UNKEYED, LANE, OWN_LOOP)),
    *((way, "values") for way in (UNKEYED, LANE, OWN_LOOP, OWN_LOOP_LANE)),
]


@pytest.mark.parametrize("holder", HOLDERS)
@pytest.mark.parametrize(("way", "method"), CELLS, ids=str)
async def test_cancelling_the_task_of_a_call_that_has_ended_harms_no_other(way: Way, method: str, holder: str) -> None:
    async with hosting(Keeps, holder, own_loop=way.own_loop) as host:
        payloads = [encode_arguments(JSON, (number,), {}) for number in range(COUNT)]
        await way.execute(host, method, payloads, content_type=JSON)
        if method == "some_raise":
            raised = [number for number in range(COUNT) if number % 4 == 2]
            assert host.outbox.failures_of.keys() == {number + 1 for number in raised}
            assert {host.outbox.failures_of[number + 1].message for number in raised} == {"ValueError: no"}
        else:
            assert not host.outbox.failures_of
            assert len(host.outbox.results_of) == COUNT


@deployment(max_ongoing=512)
class Leaves:
    """Each call leaves something at its task, and looks for what others have left."""

    def __init__(self) -> None:
        self.local: weakref.WeakKeyDictionary[Task, int] = weakref.WeakKeyDictionary()
        self.registry: dict[Task, int] = {}

    def _task(self) -> Task:
        task = asyncio.current_task()
        assert task is not None
        return task

    async def weak_local(self, number: int) -> int:
        return self.local.setdefault(self._task(), number)

    async def registered(self, number: int) -> int:
        return self.registry.setdefault(self._task(), number)

    async def weak_local_after_a_wait(self, number: int) -> int:
        await asyncio.sleep(0)
        return self.local.setdefault(self._task(), number)


@pytest.mark.parametrize("method", ["weak_local", "registered", "weak_local_after_a_wait"])
@pytest.mark.parametrize("way", WAYS, ids=str)
async def test_what_is_kept_by_task_is_kept_by_call(way: Way, method: str) -> None:
    async with hosting(Leaves, own_loop=way.own_loop) as host:
        payloads = [b"[%d]" % number for number in range(COUNT)]
        await way.execute(host, method, payloads, content_type=JSON)
        assert [host.outbox.results_of[run_id] for run_id in range(1, COUNT + 1)] == [
            b"%d" % number for number in range(COUNT)
        ]


@deployment(max_ongoing=512)
class CancelsItself:
    """Calls that cancel their own tasks, and go on or wait."""

    async def goes_on(self, number: int) -> int:
        if number % 2:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
        else:
            await asyncio.sleep(0)
        return number


@pytest.mark.parametrize("way", WAYS, ids=str)
async def test_a_call_that_cancels_itself_and_goes_on_harms_no_other(way: Way) -> None:
    async with hosting(CancelsItself, own_loop=way.own_loop) as host:
        payloads = [b"[%d]" % number for number in range(COUNT)]
        await way.execute(host, "goes_on", payloads, content_type=JSON)
        assert not host.outbox.failures_of
