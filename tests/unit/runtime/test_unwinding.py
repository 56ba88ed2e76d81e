"""What ends the loop does not end what the program has open."""

from __future__ import annotations

import asyncio
import sys

import pytest

from slotmesh.runtime.unwinding import run_unwound


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
