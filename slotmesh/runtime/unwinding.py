"""An event loop that foreign code does not end.

SystemExit or KeyboardInterrupt out of a task or a callback stops a loop where it stands: `asyncio.gather(quits())` in a
handler is enough. The task in which it was raised has it as its outcome, and so has the call that awaits that; but
`asyncio.Runner` then cancels all tasks of the loop, those of grpc's servers too. What such a server has asked for, the
next call, is written by grpc into memory that was its task's: a crash, now or later. A server that was stopped has
asked for nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

ResultT = TypeVar("ResultT")


def run_unwound(
    runner: asyncio.Runner,
    main: Coroutine[Any, Any, ResultT],
    goes_on: Callable[[BaseException], object] | None = None,
) -> ResultT:
    """As `runner.run(main)`, but that SystemExit out of anything but `main` does not end the loop where it stands.

    `goes_on` is called with it, and the loop goes on, with all its tasks. Without that, `main` is cancelled and awaited
    before it is raised: what `main` opened is closed by then, in its order, while all other tasks still run.
    """
    tasks: list[asyncio.Task[ResultT]] = []

    async def run() -> ResultT:
        task: asyncio.Task[Any] | None = asyncio.current_task()
        if task is not None:
            tasks.append(task)
        return await main

    work: Coroutine[Any, Any, Any] = run()
    while True:
        try:
            result = runner.run(work)
        except (SystemExit, KeyboardInterrupt) as error:
            if not tasks or tasks[0].done():
                raise
            if goes_on is None:
                tasks[0].cancel()
                runner.run(_ended(tasks[0]))
                raise
            goes_on(error)
            work = _ended(tasks[0])
        else:
            return tasks[0].result() if tasks else result


async def _ended(task: asyncio.Task[Any]) -> None:
    await asyncio.wait([task])
