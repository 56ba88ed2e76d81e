"""The handlers under load."""

from __future__ import annotations

import asyncio

import slotmesh


@slotmesh.deployment
class Echo:
    """Gives back what it got. It does nothing, so that what is measured is the mesh."""

    async def echo(self, payload: bytes) -> bytes:
        return payload


class Nap:
    """The same after a while: the time of a call is the handler's, and slots are what there is too little of."""

    def __init__(self, seconds: float = 0.05) -> None:
        self._seconds = seconds

    async def echo(self, payload: bytes) -> bytes:
        await asyncio.sleep(self._seconds)
        return payload
