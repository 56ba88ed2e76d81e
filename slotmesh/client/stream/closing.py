"""How the streams of an endpoint end when its mesh is closed.

Purpose: waits for the calls that a caller waits for, at most until the end of the grace; then the rest fails.
Invariants: no cancelled call is waited for, whether it was sent or not. No task of the endpoint is left afterwards.
Owner: the endpoint's `CallStream`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from slotmesh.client.stream.connection import Connection
from slotmesh.errors import Failure

LOOK_S: Final = 0.05
"""Between two looks whether a caller waits for a call: a future that is cancelled notifies nothing."""

IDLE_GRACE_S: Final = 1.0
"""How long the orderly end of streams may take on which no caller waits for a call."""

LAST_WORDS_S: Final = 0.2
"""How long a router may take to read that no caller waits for what is unanswered."""

Tasks = Callable[[], set[asyncio.Task[None]]]
"""All that have calls under way now."""


async def end_streams(connection: Connection, tasks: Tasks, until: float, closed: Failure) -> None:
    """Returns once all tasks have ended. `until`: the end of the grace, seconds of the event loop's clock."""
    if not tasks():
        return
    connection.finish()
    if not await _finished(connection, tasks, until):
        connection.abandon(closed)
        await _have_ended(tasks, LAST_WORDS_S)
    left = tasks()
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)


async def _finished(connection: Connection, tasks: Tasks, until: float) -> bool:
    """Waits for all tasks as long as a caller waits for a call, and a moment longer for streams to end."""
    loop = asyncio.get_running_loop()
    while tasks() and (left_s := until - loop.time()) > 0:
        if not connection.has_wanted:
            if not connection.is_open:
                return False
            connection.finish()
            until = min(until, loop.time() + IDLE_GRACE_S)
        await _have_ended(tasks, min(left_s, LOOK_S))
    return not tasks()


async def _have_ended(tasks: Tasks, within_s: float) -> None:
    """Waits for all tasks: for those, too, that begin meanwhile because a router leaves."""
    with suppress(TimeoutError):
        async with asyncio.timeout(within_s):
            while running := tasks():
                await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
