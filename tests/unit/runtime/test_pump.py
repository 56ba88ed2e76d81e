"""The pump writes one frame at a time, and what gathers meanwhile leaves together."""

from __future__ import annotations

import asyncio
import weakref

import pytest

from slotmesh.runtime.pump import StreamPump
from tests.support.wait import wait_until


class Transport:
    """Takes a frame when the test lets it."""

    def __init__(self) -> None:
        self.pending: list[int] = []
        self.frames: list[list[int]] = []
        self.writing = 0
        self.gate = asyncio.Event()

    def next_frame(self) -> list[int] | None:
        frame, self.pending = self.pending, []
        return frame or None

    async def write(self, frame: list[int]) -> None:
        self.writing += 1
        assert self.writing == 1, "two writes at once"
        await self.gate.wait()
        self.frames.append(frame)
        self.writing -= 1


@pytest.mark.asyncio
async def test_one_alone_leaves_at_once_and_the_next_frame_fills_meanwhile() -> None:
    transport = Transport()
    pump = StreamPump(transport.write, transport.next_frame)
    running = asyncio.create_task(pump.run())
    transport.pending.append(1)
    pump.wake()
    await wait_until(lambda: transport.writing, what="the first frame is under way")
    for item in range(2, 6):
        transport.pending.append(item)
        pump.wake()
    transport.gate.set()
    await wait_until(lambda: len(transport.frames) == 2, what="the second frame is written")
    assert transport.frames == [[1], [2, 3, 4, 5]]
    pump.close()
    await running


@pytest.mark.asyncio
async def test_close_writes_what_is_pending_first() -> None:
    transport = Transport()
    transport.gate.set()
    pump = StreamPump(transport.write, transport.next_frame)
    transport.pending = [1, 2]
    pump.close()
    await pump.run()
    assert transport.frames == [[1, 2]]


@pytest.mark.asyncio
async def test_it_wakes_again_and_again() -> None:
    transport = Transport()
    transport.gate.set()
    pump = StreamPump(transport.write, transport.next_frame)
    running = asyncio.create_task(pump.run())
    for item in range(50):
        transport.pending.append(item)
        pump.wake()
        await wait_until(lambda: not transport.pending, what="the pump has looked")
    pump.close()
    await running
    assert [item for frame in transport.frames for item in frame] == list(range(50))


@pytest.mark.asyncio
async def test_a_wake_while_the_last_look_finds_nothing_is_not_lost() -> None:
    pending: list[int] = []
    written: list[int] = []

    def next_frame() -> int | None:
        if pending:
            return pending.pop()
        if not written:
            pending.append(1)
            pump.wake()
        return None

    async def write(frame: int) -> None:
        written.append(frame)
        pump.close()

    pump = StreamPump(write, next_frame)
    async with asyncio.timeout(5):
        await pump.run()
    assert written == [1]


@pytest.mark.asyncio
@pytest.mark.parametrize("culprit", ["write", "next_frame"])
async def test_errors_reach_whoever_runs_it(culprit: str) -> None:
    def next_frame() -> int:
        if culprit == "next_frame":
            raise ValueError(culprit)
        return 1

    async def write(_frame: int) -> None:
        raise ValueError(culprit)

    with pytest.raises(ValueError, match=culprit):
        await StreamPump(write, next_frame).run()


@pytest.mark.asyncio
async def test_it_can_be_cancelled_asleep_and_waked_after_that() -> None:
    transport = Transport()
    pump = StreamPump(transport.write, transport.next_frame)
    running = asyncio.create_task(pump.run())
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    pump.wake()
    assert not transport.frames


class Frame:
    """What can be referred to weakly."""


@pytest.mark.asyncio
async def test_a_frame_is_not_kept_while_it_is_written() -> None:
    gate, frames = asyncio.Event(), [Frame()]
    known = [weakref.ref(each) for each in frames]
    pump: StreamPump[Frame] = StreamPump(lambda _: gate.wait(), lambda: frames.pop() if frames else None)
    running = asyncio.create_task(pump.run())
    await wait_until(lambda: not frames, what="the frame is under way")
    assert known[0]() is None
    gate.set()
    pump.close()
    await running
