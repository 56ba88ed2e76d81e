"""Handlers that are rolled out, one after the other, while clients call them."""

from __future__ import annotations

import os


class First:
    """Writes each keyed call to a file that all replicas share, in the order in which they are executed."""

    NAME = "first"

    def __init__(self, log: str) -> None:
        self._log = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    async def name(self) -> str:
        return self.NAME

    async def step(self, key: str, number: int) -> str:
        os.write(self._log, f"{key} {number}\n".encode())
        return self.NAME


class Second(First):
    NAME = "second"


class Raising(First):
    """No replica of it ever gets ready."""

    def __init__(self, log: str) -> None:
        super().__init__(log)
        raise ValueError("the second model is not where it should be")


class Failing(First):
    """It gets ready, and fails each call."""

    async def name(self) -> str:
        raise RuntimeError("this version is broken")

    async def step(self, key: str, number: int) -> str:
        raise RuntimeError("this version is broken")
