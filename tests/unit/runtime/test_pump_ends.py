"""How a pump ends that is stopped or cancelled, and what it keeps then."""

from __future__ import annotations

import asyncio
import weakref

import pytest

from slotmesh.transport.pump import StreamPump
from tests.support.wait import wait_until
from tests.unit.runtime.test_pump import Transport


@pytest.mark.asyncio
async def test_a_pump_that_is_stopped_lets_the_write_under_way_end() -> None:
    transport = Transport()
    transport.pending = [1]
    pump = StreamPump(transport.write, transport.next_frame)
    running = pump.start()
    await wait_until(lambda: transport.writing, what="the frame is under way")
    transport.pending = [2]
    pump.stop()
    await asyncio.sleep(0)
    assert not running.done()
    transport.gate.set()
    await running
    assert transport.frames == [[1]]


@pytest.mark.asyncio
async def test_one_that_is_stopped_and_has_nothing_under_way_ends_at_once() -> None:
    transport = Transport()
    transport.gate.set()
    pump = StreamPump(transport.write, transport.next_frame)
    running = pump.start()
    transport.pending = [1]
    pump.wake()
    await wait_until(lambda: transport.frames, what="the frame is written")
    transport.pending = [2]
    pump.stop()
    assert running.done()
    await running
    pump.wake()
    await asyncio.sleep(0)
    assert transport.frames == [[1]]


@pytest.mark.asyncio
@pytest.mark.parametrize("is_cancelled", [False, True], ids=["stopped", "cancelled"])
async def test_a_pump_that_has_ended_keeps_nothing_of_its_stream(is_cancelled: bool) -> None:
    transport = Transport()
    transport.gate.set()
    pump = StreamPump(transport.write, transport.next_frame)
    running = pump.start()
    transport.pending.append(1)
    pump.wake()
    written = transport.frames
    await wait_until(lambda: written, what="a frame is written")
    if is_cancelled:
        running.cancel()
    else:
        pump.stop()
    await asyncio.gather(running, return_exceptions=True)
    alive = weakref.ref(transport)
    del transport
    assert alive() is None, "no cycle keeps it, and no garbage collection is needed"
