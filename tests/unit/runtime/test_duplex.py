"""Both halves of a stream: which of them ends it, and what is left of the other then."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import grpc
import pytest

from slotmesh.transport import duplex
from slotmesh.transport.duplex import run_stream
from slotmesh.transport.pump import StreamPump
from tests.support.wait import wait_until

pytestmark = pytest.mark.asyncio


class Transport:
    """Writes are under way until the gate is open."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.gate = asyncio.Event()
        self.begun = 0
        self.written: list[int] = []
        self.given_up = 0
        self.frames = [1]

    def pump(self) -> StreamPump[int]:
        return StreamPump(self.write, lambda: self.frames.pop() if self.frames else None)

    async def write(self, frame: int) -> None:
        self.begun += 1
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.given_up += 1
            raise
        if self.error is not None:
            raise self.error
        self.written.append(frame)


async def read_until(event: asyncio.Event) -> str:
    await event.wait()
    return "read"


async def for_ever() -> str:
    return await read_until(asyncio.Event())


async def test_it_ends_with_the_reader_and_lets_the_write_under_way_end() -> None:
    transport, over = Transport(), asyncio.Event()
    running = asyncio.create_task(run_stream(transport.pump(), read_until(over)))
    await wait_until(lambda: transport.begun, what="the frame is under way")
    over.set()
    for _ in range(5):
        await asyncio.sleep(0)
    assert not running.done()
    transport.gate.set()
    assert await running == "read"
    assert transport.written == [1]


async def test_a_write_that_does_not_end_is_given_up_before_it_returns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duplex, "LAST_WRITE_S", 0.01)
    transport, over = Transport(), asyncio.Event()
    over.set()
    assert await run_stream(transport.pump(), read_until(over)) == "read"
    assert transport.given_up == 1


async def test_a_defect_of_the_writer_ends_it() -> None:
    transport = Transport(ValueError("a defect"))
    transport.gate.set()
    with pytest.raises(ValueError, match="a defect"):
        await run_stream(transport.pump(), for_ever())
    task = asyncio.current_task()
    assert task is not None
    assert not task.cancelling()


async def test_a_transport_that_fails_is_the_readers_to_report() -> None:
    transport, over = Transport(grpc.aio.UsageError("over")), asyncio.Event()
    transport.gate.set()
    running = asyncio.create_task(run_stream(transport.pump(), read_until(over)))
    await wait_until(lambda: transport.begun, what="the write has failed")
    for _ in range(5):
        await asyncio.sleep(0)
    assert not running.done()
    over.set()
    assert await running == "read"


async def _half_closed(said: list[str]) -> None:
    said.append("half-closed")


async def test_a_pump_that_is_closed_is_followed_by_the_half_close() -> None:
    transport, over, said = Transport(), asyncio.Event(), list[str]()
    transport.gate.set()
    pump = transport.pump()
    running = asyncio.create_task(run_stream(pump, read_until(over), lambda: _half_closed(said)))
    await wait_until(lambda: transport.written, what="the frame is written")
    assert not said
    pump.close()
    await wait_until(lambda: said, what="the half-close")
    over.set()
    assert await running == "read"


@pytest.mark.parametrize("half_close", [None, lambda: _half_closed([])], ids=["alone", "with a half-close"])
async def test_who_cancels_it_twice_leaves_no_write(half_close: Callable[[], object] | None) -> None:
    transport = Transport()
    running = asyncio.create_task(run_stream(transport.pump(), for_ever(), half_close))  # type: ignore[arg-type]
    await wait_until(lambda: transport.begun, what="the frame is under way")
    running.cancel()
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await wait_until(lambda: transport.given_up, what="the write was given up")
