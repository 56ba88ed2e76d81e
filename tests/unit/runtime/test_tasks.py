"""A supervisor leaves no task behind, and no failure untold."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

import slotmesh.runtime.tasks as supervision
from slotmesh.runtime.tasks import Supervisor, TaskFailed
from tests.support.foreign_code import KINDS
from tests.support.wait import wait_until, within


async def fail(text: str = "broken") -> None:
    raise ValueError(text)


@pytest.mark.asyncio
async def test_leaving_ends_all_tasks_newest_first() -> None:
    ended: list[str] = []

    async def work(name: str) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)  # clean-up that waits
            ended.append(name)

    async with Supervisor() as tasks:
        for name in ("first", "second", "third"):
            tasks.start(work(name), name=name)
        await asyncio.sleep(0)
    assert ended == ["third", "second", "first"]
    assert tasks.failure is None


@pytest.mark.asyncio
async def test_a_failure_is_logged_asks_for_a_stop_and_is_raised_in_the_end(caplog: pytest.LogCaptureFixture) -> None:
    stop = asyncio.Event()
    siblings: list[asyncio.Task[object]] = []

    async def own() -> None:
        async with Supervisor(on_failure=stop.set) as tasks:
            siblings.append(tasks.start(asyncio.Event().wait(), name="sibling"))
            tasks.start(fail(), name="link")
            async with asyncio.timeout(20.0):
                await stop.wait()
            assert not siblings[0].done(), "siblings go on until the orderly end"

    with caplog.at_level(logging.ERROR), pytest.raises(TaskFailed, match="task link failed: ValueError") as caught:
        await own()
    assert isinstance(caught.value.__cause__, ValueError)
    assert siblings[0].cancelled()
    (record,) = caplog.records
    assert "task=link" in record.getMessage()
    assert record.exc_info is not None


@pytest.mark.asyncio
async def test_the_first_failure_counts(caplog: pytest.LogCaptureFixture) -> None:
    asked: list[int] = []

    async def own() -> None:
        async with Supervisor(on_failure=lambda: asked.append(1)) as tasks:
            tasks.start(fail("one"), name="a")
            tasks.start(fail("two"), name="b")
            await wait_until(lambda: len(caplog.records) == 2, what="both failures are logged")

    with pytest.raises(TaskFailed, match="one"):
        await own()
    assert asked == [1]


@pytest.mark.asyncio
async def test_an_error_of_the_owner_goes_before_that_of_a_task() -> None:
    async def own() -> None:
        async with Supervisor() as tasks:
            tasks.start(fail(), name="a")
            await wait_until(lambda: tasks.failure, what="the task failed")
            raise KeyError

    with pytest.raises(KeyError):
        await own()


@pytest.mark.asyncio
async def test_a_failure_in_clean_up_is_told() -> None:
    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise ValueError("in clean-up")

    async def own() -> None:
        async with Supervisor() as tasks:
            tasks.start(work(), name="a")
            await asyncio.sleep(0)

    with pytest.raises(TaskFailed, match="in clean-up"):
        await own()


@pytest.mark.asyncio
async def test_ending_by_itself_and_being_cancelled_are_no_failures() -> None:
    async with Supervisor() as tasks:
        done = tasks.start(asyncio.sleep(0, "result"), name="a")
        cancelled = tasks.start(asyncio.Event().wait(), name="b")
        cancelled.cancel()
        assert await done == "result"
        await wait_until(cancelled.done, what="the task was cancelled")
    assert tasks.failure is None


@pytest.mark.asyncio
async def test_an_owner_that_is_cancelled_while_it_ends_leaves_no_task_behind() -> None:
    cleaning = asyncio.Event()

    async def work() -> None:
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                if cleaning.is_set():
                    raise
                cleaning.set()  # not yet: it takes two

    async def own() -> None:
        async with Supervisor() as tasks:
            tasks.start(work(), name="stubborn")
            await asyncio.sleep(0)

    owner = asyncio.create_task(own())
    await within(cleaning.wait(), "the clean-up to begin")
    owner.cancel()
    with pytest.raises(asyncio.CancelledError):
        await owner
    assert [task.get_name() for task in asyncio.all_tasks() if task.get_name() == "stubborn"] == []


@pytest.mark.asyncio
async def test_nothing_starts_after_the_end() -> None:
    async with Supervisor() as tasks:
        pass
    await tasks.close()
    with pytest.raises(RuntimeError, match="cannot start late"):
        tasks.start(fail(), name="late")


def ending(how: str, runs: list[float]) -> Callable[[], Coroutine[Any, Any, None]]:
    """Work that ends in its first three runs, and then lasts."""

    async def work() -> None:
        runs.append(asyncio.get_running_loop().time())
        await asyncio.sleep(0)
        if len(runs) > 3:
            await asyncio.Event().wait()
        if how in KINDS:
            KINDS[how]()

    return work


@pytest.mark.asyncio
@pytest.mark.parametrize("how", [*(kind for kind in KINDS if kind != "GeneratorExit"), "return"])
async def test_work_that_lasts_is_started_again_however_it_ends(
    how: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervision, "AGAIN_AFTER_S", 0.001)
    runs: list[float] = []
    with caplog.at_level(logging.ERROR):
        async with Supervisor(on_failure=pytest.fail) as tasks:
            task = tasks.keep(ending(how, runs), name="watch")
            await wait_until(lambda: len(runs) == 4, what="it was started again")
            assert not task.done()
    assert task.cancelled()
    records = [record for record in caplog.records if "runs for good" in record.getMessage()]
    assert len(records) == 3
    assert all("task=watch" in record.getMessage() for record in records)
    for record in records:
        raised = record.exc_info[0] if record.exc_info else None
        assert (raised is None) == (how == "return")


@pytest.mark.asyncio
async def test_work_that_lasts_ends_when_it_is_cancelled_or_over() -> None:
    runs: list[float] = []
    over: list[bool] = []
    async with Supervisor(on_failure=pytest.fail) as tasks:
        cancelled = tasks.keep(ending("return", runs), name="a")
        await wait_until(lambda: runs, what="it has begun")
        cancelled.cancel()
        await asyncio.wait([cancelled])

        async def end() -> None:
            over.append(True)

        await asyncio.wait_for(tasks.keep(end, name="b", until=lambda: len(over) == 2), 5)
    assert cancelled.cancelled()
    assert len(over) == 2


@pytest.mark.asyncio
@pytest.mark.parametrize("kind", KINDS)
async def test_a_task_that_ends_by_no_cancellation_of_its_owner_has_failed(kind: str) -> None:
    stop = asyncio.Event()

    async def work() -> None:
        await asyncio.sleep(0)
        KINDS[kind]()

    async def own() -> None:
        async with Supervisor(on_failure=stop.set) as tasks, asyncio.timeout(20.0):
            tasks.start(work(), name="link")
            await stop.wait()

    with pytest.raises(TaskFailed, match="task link failed: ") as caught:
        await own()
    named = "RuntimeError" if kind == "StopIteration" else kind
    assert type(caught.value.__cause__).__name__ == named
