"""The pump writes one frame at a time, and what gathers meanwhile leaves together."""

from __future__ import annotations

import asyncio
import weakref
from collections import Counter

import pytest

from slotmesh.transport.pump import StreamPump, WokenPumps
from tests.support.wait import wait_until, within


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
    running = pump.start()
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
    await pump.start()
    assert transport.frames == [[1, 2]]


@pytest.mark.asyncio
async def test_it_wakes_again_and_again() -> None:
    transport = Transport()
    transport.gate.set()
    pump = StreamPump(transport.write, transport.next_frame)
    running = pump.start()
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
    async with asyncio.timeout(20.0):
        await pump.start()
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
        await StreamPump(write, next_frame).start()


@pytest.mark.asyncio
async def test_it_can_be_cancelled_asleep_and_waked_after_that() -> None:
    transport = Transport()
    pump = StreamPump(transport.write, transport.next_frame)
    running = pump.start()
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
    running = pump.start()
    await wait_until(lambda: not frames, what="the frame is under way")
    assert known[0]() is None
    gate.set()
    pump.close()
    await running


class Writers:
    """Pumps that are woken together, and the log of what they write."""

    def __init__(self) -> None:
        self.woken = WokenPumps()
        self.pending: dict[str, list[str]] = {}
        self.looks: Counter[str] = Counter()
        self.written: list[str] = []
        self.running: list[asyncio.Future[None]] = []

    async def start(self, name: str, *, fails: bool = False) -> StreamPump[str]:
        pending = self.pending[name] = []

        def next_frame() -> str | None:
            self.looks[name] += 1
            return pending.pop(0) if pending else None

        async def write(frame: str) -> None:
            self.written.append(frame)
            if fails:
                raise ValueError(frame)
            await asyncio.sleep(0)

        pump = StreamPump(write, next_frame, self.woken)
        self.running.append(pump.start())
        await asyncio.sleep(0)
        return pump

    async def end(self) -> list[BaseException | None]:
        for each in self.running:
            each.cancel()
        return await asyncio.gather(*self.running, return_exceptions=True)


@pytest.mark.asyncio
async def test_pumps_that_a_piece_of_work_wakes_write_at_its_end() -> None:
    writers = Writers()
    first, second = await writers.start("a"), await writers.start("b")
    writers.woken.is_at_work = True
    writers.pending["a"] += ["a1", "a2"]
    first.wake()
    writers.pending["b"] += ["b1"]
    second.wake()
    assert writers.written == [], "the work goes on"
    writers.woken.write()
    assert writers.written == ["a1", "b1"], "before the event loop goes on; one write at a time"
    await wait_until(lambda: len(writers.written) == 3, what="the next frame follows")
    assert writers.written == ["a1", "b1", "a2"]
    await writers.end()


@pytest.mark.asyncio
async def test_other_work_ends_with_the_turn_of_the_loop() -> None:
    writers = Writers()
    pump = await writers.start("a")
    writers.pending["a"] += ["a1"]
    pump.wake()
    pump.wake()
    assert writers.written == []
    await asyncio.sleep(0)
    assert writers.written == ["a1"]
    await writers.end()


@pytest.mark.asyncio
async def test_a_pump_that_held_its_frame_back_looks_once_a_turn() -> None:
    writers = Writers()
    pump = await writers.start("a")
    for _ in range(3):
        writers.woken.is_at_work = True
        pump.wake()
        writers.woken.write()
    assert writers.looks["a"] == 2, "when it began, and when it was woken first"
    writers.pending["a"] += ["a1"]
    assert writers.written == []
    await asyncio.sleep(0)
    assert writers.written == ["a1"]
    await wait_until(lambda: writers.looks["a"] == 4, what="it has found nothing more")
    writers.woken.is_at_work = True
    writers.pending["a"] += ["a2"]
    pump.wake()
    writers.woken.write()
    assert writers.written == ["a1", "a2"], "at once again"
    await writers.end()


@pytest.mark.asyncio
async def test_a_pump_that_breaks_leaves_the_others_and_the_work_alone() -> None:
    writers = Writers()
    broken, sound = await writers.start("a", fails=True), await writers.start("b")
    writers.woken.is_at_work = True
    for name, pump in (("a", broken), ("b", sound)):
        writers.pending[name] += [name]
        pump.wake()
    writers.woken.write()
    assert writers.written == ["a", "b"]
    await asyncio.wait(writers.running, return_when=asyncio.FIRST_COMPLETED)
    failure, cancelled = await writers.end()
    assert isinstance(failure, ValueError)
    assert isinstance(cancelled, asyncio.CancelledError)


@pytest.mark.asyncio
async def test_a_write_that_takes_turns_of_the_loop_is_one_write() -> None:
    written: list[int] = []
    frames = [1, 2]

    async def write(frame: int) -> None:
        for _ in range(3):
            await asyncio.sleep(0)
        written.append(frame)

    pump = StreamPump(write, lambda: frames.pop(0) if frames else None)
    pump.close()
    await pump.start()
    assert written == [1, 2]


@pytest.mark.asyncio
async def test_whoever_cancels_it_cancels_the_write_under_way() -> None:
    ends: list[str] = []
    begun = asyncio.Event()

    async def write(_frame: int) -> None:
        begun.set()
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            ends.append("cancelled")
            raise

    running = StreamPump(write, lambda: 1).start()
    await within(begun.wait(), "a write that has begun")
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await wait_until(lambda: ends, what="the write has ended")
    assert running.cancelled()


@pytest.mark.asyncio
async def test_a_transport_that_cancels_a_write_ends_the_pump() -> None:
    gate = asyncio.get_running_loop().create_future()

    async def write(_frame: int) -> None:
        await gate

    running = StreamPump(write, lambda: 1).start()
    await asyncio.sleep(0)
    gate.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
