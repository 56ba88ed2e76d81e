"""A handler that writes down each step of its calls, for tests of replicas that fence themselves."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Final

import slotmesh

VARIABLE: Final = "FENCED_JOURNAL"
"""Names the file."""


@slotmesh.deployment(max_ongoing=16)
class Journal:
    """One line a step: process id, key, call."""

    def __init__(self) -> None:
        self._file = Path(os.environ[VARIABLE]).open("a", encoding="utf-8", buffering=1)  # noqa: SIM115 - for its life

    def _note(self, key: str, call: str) -> None:
        self._file.write(f"{os.getpid()} {key} {call}\n")

    async def add(self, key: str, call: str) -> int:
        self._note(key, call)
        return os.getpid()

    async def go_on(self, key: str) -> None:
        """Notes a step every few milliseconds, and does not end."""
        while True:
            self._note(key, "step")
            await asyncio.sleep(0.005)

    async def block(self, key: str) -> None:
        """Keeps the event loop, and does not end."""
        self._note(key, "blocks")
        while True:
            time.sleep(1.0)  # noqa: ASYNC251 - that is what the test is about
