"""How a command ends: one place for what operators read when something does not work.

Invariants: failures go to stderr, as words and never as a traceback; results go to stdout.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar

import typer

from slotmesh.cli.saying import say
from slotmesh.errors import SlotmeshError

FAILED: Final = 1
"""Exit status: it was tried and did not work."""
WRONG_INPUT: Final = 2
"""Exit status: what was typed, or a file that it named, is wrong. Nothing was sent."""

NOT_IN_TIME: Final = 3
"""Exit status: it was done, and what should follow from it has not come in time."""

UNWELL: Final = 4
"""Exit status: it was looked at, and something is wrong with it."""

INTERRUPTED: Final = 130
"""Exit status: Ctrl-C ended it before it had done what it had to."""

ResultT = TypeVar("ResultT")


class CommandFailed(Exception):
    """The command has failed; the message has the reason, and the way out."""

    def __init__(self, message: str, exit_code: int = FAILED) -> None:
        super().__init__(message)
        self.exit_code = exit_code

    async def explained(self) -> str:
        """The message; of some failures with what a server is asked for it."""
        return str(self)


@asynccontextmanager
async def ended_by_sigterm() -> AsyncIterator[None]:
    """SIGTERM cancels the block, so that it says its last words; then the command ends as if killed by it."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    received = False

    def end() -> None:
        nonlocal received
        received = True
        if task is not None:
            task.cancel()

    loop.add_signal_handler(signal.SIGTERM, end)
    try:
        yield
    except asyncio.CancelledError:
        if received and task is not None and not task.uncancel():
            raise typer.Exit(128 + signal.SIGTERM) from None
        raise
    finally:
        loop.remove_signal_handler(signal.SIGTERM)


def complete(work: Coroutine[Any, Any, ResultT]) -> ResultT:
    """Runs a command's work on a fresh event loop. Its failure becomes words on stderr and an exit status."""
    try:
        return asyncio.run(work)
    except CommandFailed as failure:
        say(asyncio.run(failure.explained()), err=True)
        raise typer.Exit(failure.exit_code) from failure
    except SlotmeshError as failure:
        say(failure, err=True)
        raise typer.Exit(FAILED) from failure
