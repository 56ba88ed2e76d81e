"""Versions of a handler to which traffic is shifted: good ones, and such as should get none."""

from __future__ import annotations

import asyncio


class Good:
    """Answers with the name it was given."""

    def __init__(self, name: str) -> None:
        self._name = name

    async def name(self) -> str:
        return self._name


class Broken(Good):
    """Gets ready, and fails each call."""

    async def name(self) -> str:
        raise RuntimeError("this version is broken")


class Hanging(Good):
    """Gets ready, and answers no call."""

    async def name(self) -> str:
        await asyncio.Event().wait()
        return self._name
