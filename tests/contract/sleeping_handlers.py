"""Handlers for `test_service_times.py`."""

from __future__ import annotations

import asyncio

import slotmesh


@slotmesh.deployment(max_ongoing=1024)
class Sleeping:
    async def nap(self, payload: bytes) -> bytes:
        await asyncio.sleep(0.02)
        return payload


@slotmesh.deployment(max_ongoing=1024, own_loop=True)
class OwnLoop(Sleeping):
    """The same, on a loop of its own."""
