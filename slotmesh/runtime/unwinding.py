"""An event loop whose program unwinds first when something ends the loop.

SystemExit out of a task or a callback, a handler's own for example, stops a loop where it stands; `asyncio.Runner` then
cancels all of its tasks at once, those of grpc's servers too. What such a server has asked for, the next call, is
written by grpc into memory that was its task's: a crash, now or later. A server that was stopped has asked for nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

ResultT = TypeVar("ResultT")


def run_unwound(runner: asyncio.Runner, main: Coroutine[Any, Any, ResultT]) -> ResultT:
    """As `runner.run(main)`; where SystemExit ends the loop, `main` is cancelled and awaited before it is raised.

    What `main` opened is closed by then, in its order, while all other tasks still run.
    """
    tasks: list[asyncio.Task[Any] | None] = []

    async def run() -> ResultT:
        tasks.append(asyncio.current_task())
        return await main

    try:
        return runner.run(run())
    except SystemExit:
        for task in tasks:
            if task is not None and not task.done():
                task.cancel()
                runner.run(_ended(task))
        raise


async def _ended(task: asyncio.Task[Any]) -> None:
    await asyncio.wait([task])
