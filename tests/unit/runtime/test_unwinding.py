"""What ends the loop does not end what the program has open."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable

import pytest
import uvloop

from slotmesh.runtime.main import run_unwound
from tests.support.foreign_code import KINDS


def test_it_returns_and_raises_as_the_program_does() -> None:
    async def fail() -> None:
        raise LookupError("nothing there")

    with asyncio.Runner() as runner:
        assert run_unwound(runner, asyncio.sleep(0, "done")) == "done"
        with pytest.raises(LookupError, match="nothing there"):
            run_unwound(runner, fail())


async def _exit() -> None:
    sys.exit(5)


@pytest.mark.parametrize("by", ["callback", "task", "program"])
def test_the_program_unwinds_before_other_tasks_are_cancelled(by: str) -> None:
    events: list[str] = []

    async def server() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            events.append("the server's task was cancelled")
            raise

    async def program() -> None:
        loop = asyncio.get_running_loop()
        serving = loop.create_task(server())
        try:
            await asyncio.sleep(0)
            if by == "program":
                await _exit()
            task = loop.create_task(_exit()) if by == "task" else loop.call_soon(sys.exit, 5)
            await asyncio.Event().wait()
            del task
        finally:
            await asyncio.sleep(0.001)  # what is closed here needs a loop that runs
            events.append("closed" if not serving.done() else "too late")

    with pytest.raises(SystemExit, match="5"), asyncio.Runner() as runner:
        run_unwound(runner, program())
    assert events == ["closed", "the server's task was cancelled"]


@pytest.mark.parametrize("make_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
@pytest.mark.parametrize("kind", ["SystemExit", "KeyboardInterrupt"])
def test_the_loop_goes_on_with_all_its_tasks_when_one_would_end_it(
    make_loop: Callable[[], asyncio.AbstractEventLoop], kind: str
) -> None:
    told: list[BaseException] = []

    async def quits() -> None:
        await asyncio.sleep(0)
        KINDS[kind]()

    async def program() -> int:
        loop = asyncio.get_running_loop()
        neighbours = [loop.create_task(asyncio.sleep(0.001, number)) for number in range(3)]
        outcomes = await asyncio.gather(quits(), quits(), return_exceptions=True)
        assert [type(each).__name__ for each in outcomes] == [kind, kind]
        loop.call_soon(KINDS[kind])
        return sum(await asyncio.gather(*neighbours))

    with asyncio.Runner(loop_factory=make_loop) as runner:
        assert run_unwound(runner, program(), told.append) == 3
    assert {type(each).__name__ for each in told} == {kind}


@pytest.mark.parametrize("goes_on", [None, [].append])
def test_the_program_itself_may_end_the_process(goes_on: Callable[[BaseException], object] | None) -> None:
    with pytest.raises(SystemExit, match="5"), asyncio.Runner() as runner:
        run_unwound(runner, _exit(), goes_on)
