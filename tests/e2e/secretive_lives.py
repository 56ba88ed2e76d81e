"""Handlers that hold secrets, and end in the ways in which processes end."""

from __future__ import annotations

import asyncio
import os
import sys

from tests.e2e.secretive_handlers import SECRETS, fail


class Leaving:
    """Ends its process while it starts."""

    def __init__(self, password: str = "", stage: str = "") -> None:
        held = (password, SECRETS["local"])
        if stage == "exit":
            sys.exit(f"planned: exit, {len(held)} secrets")
        if stage == "crash":
            os.abort()
        fail("constructor", held)

    async def never(self) -> None:
        """Is never called."""


class Slow:
    """Takes longer than anybody waits, with secrets in its hands."""

    async def __call__(self, item: str) -> None:
        held = (item, SECRETS["local"])
        await asyncio.sleep(30)
        fail("slow", held)

    async def die(self, item: str) -> None:
        """Ends the process with a call on it."""
        held = (item, SECRETS["local"])
        os._exit(len(held))
