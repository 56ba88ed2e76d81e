"""Frames of clients, once they were dealt with."""

from __future__ import annotations

import asyncio
import weakref
from typing import Any

import pytest

from router_service.servicer import _read
from slotmesh.runtime.loop_slices import StepQueue
from slotmesh.v1 import call_pb2
from tests.support.wait import wait_until


class Frame:
    """A heartbeat that can be referred to weakly."""

    heartbeat = call_pb2.Heartbeat(stamp=1)

    def WhichOneof(self, _: str) -> str:
        return "heartbeat"


class Client:
    """Says one thing, then nothing for long; its context and its stream."""

    def __init__(self) -> None:
        self.frames = [Frame()]
        self.heard_of: list[int] = []

    async def read(self) -> Frame:
        if not self.frames:
            await asyncio.Event().wait()
        return self.frames.pop()

    def heard(self, stamp: int) -> None:
        self.heard_of.append(stamp)


@pytest.mark.asyncio
async def test_the_latest_frame_is_not_kept_while_the_client_says_nothing() -> None:
    client: Any = Client()
    frame = weakref.ref(client.frames[0])
    reading = asyncio.create_task(_read(client, client, StepQueue()))
    await wait_until(lambda: bool(client.heard_of), what="the frame was dealt with")
    assert frame() is None
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
