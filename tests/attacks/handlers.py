"""What is attacked: a handler that answers at once, and writes down what must not be executed."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Final

import slotmesh

EXECUTIONS: Final = "SLOTMESH_ATTACKED_EXECUTIONS"
"""Environment variable with the path of the file that has a line for each execution of `note`."""


SLOW_S: Final = 8.0
"""What `slow` takes, unless it is cancelled."""


@slotmesh.deployment(max_ongoing=256)
class Attacked:
    """One endpoint for callers and attackers."""

    def __init__(self) -> None:
        self._file = os.open(os.environ[EXECUTIONS], os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)

    async def echo(self, data: bytes) -> bytes:
        return data

    async def slow(self, data: bytes) -> bytes:
        await asyncio.sleep(SLOW_S)
        return data[:1]

    async def note(self, text: bytes) -> bytes:
        """One write in append mode a call: lines of several processes never mix."""
        os.write(self._file, text + b"\n")
        return text


def executions(path: Path) -> list[str]:
    """What `note` was executed with, in that order."""
    return path.read_text("utf-8").splitlines() if path.exists() else []
