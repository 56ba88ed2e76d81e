"""The writer that needs no task: order, one write at a time, and what becomes of frames when a write fails."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar

import pytest

from slotmesh.transport.prompt_writer import PromptWriter

pytestmark = pytest.mark.asyncio

place: ContextVar[str] = ContextVar("place", default="outside")


class Transport:
    """Takes frames when it is told to."""

    def __init__(self, *, turns: int = 0) -> None:
        self.turns = turns
        """Turns of the loop that a write takes before it waits."""
        self.begun: list[int] = []
        self.places: list[str] = []
        self.gates: list[asyncio.Future[None]] = []

    async def write(self, frame: int) -> None:
        self.begun.append(frame)
        for _ in range(self.turns):
            await asyncio.sleep(0)
        gate = asyncio.get_running_loop().create_future()
        self.gates.append(gate)
        await gate
        self.places.append(place.get())


async def turn() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


async def test_the_first_write_begins_at_once_and_the_others_follow_one_by_one() -> None:
    transport = Transport()
    writer = PromptWriter(transport.write)
    for frame in range(3):
        writer.send(frame, 10 + frame)
    assert (transport.begun, writer.backlog) == ([0], 23), "before anything else has had a turn"
    for written in range(3):
        assert transport.begun == [*range(written + 1)]
        transport.gates[written].set_result(None)
        await turn()
    await writer.drained()
    assert (writer.backlog, writer.is_broken) == (0, False)
    writer.send(3)
    assert transport.begun == [0, 1, 2, 3]


async def test_writes_that_wait_for_turns_of_the_loop() -> None:
    transport = Transport(turns=2)
    writer = PromptWriter(transport.write)
    writer.send(0)
    await turn()
    (gate,) = transport.gates
    gate.set_result(None)
    await writer.drained()


async def test_writes_that_do_not_wait() -> None:
    written: list[int] = []

    async def write(frame: int) -> None:
        written.append(frame)

    writer = PromptWriter(write)
    for frame in range(1000):
        writer.send(frame)
    assert written == [*range(1000)]
    await writer.drained()


@pytest.mark.parametrize("error", [RuntimeError("broken"), asyncio.CancelledError()])
async def test_nothing_is_written_after_a_failure(error: BaseException) -> None:
    transport = Transport()
    writer = PromptWriter(transport.write)
    writer.send(0, 1)
    writer.send(1, 1)
    waiting = asyncio.create_task(writer.drained())
    transport.gates[0].set_exception(error) if isinstance(error, Exception) else transport.gates[0].cancel()
    await asyncio.wait_for(waiting, 1)
    writer.send(2)
    assert (transport.begun, writer.backlog, writer.is_broken) == ([0], 0, True)


async def test_who_waits_for_room_waits_for_so_much_and_no_more() -> None:
    transport = Transport()
    writer = PromptWriter(transport.write)
    for frame in range(4):
        writer.send(frame, 100)
    await asyncio.wait_for(writer.room(300), 1)
    waiting = asyncio.create_task(writer.room(150))
    await turn()
    transport.gates[0].set_result(None)
    await turn()
    assert (writer.backlog, waiting.done()) == (200, False)
    transport.gates[1].set_result(None)
    await asyncio.wait_for(waiting, 1)
    assert (writer.backlog, transport.begun) == (100, [0, 1, 2])


@pytest.mark.parametrize("how", ["stopped", "broken"])
async def test_who_waits_for_room_hears_that_nothing_is_written_any_more(how: str) -> None:
    transport = Transport()
    writer = PromptWriter(transport.write)
    for frame in range(3):
        writer.send(frame, 100)
    waiting = asyncio.create_task(writer.room(0))
    await turn()
    writer.stop() if how == "stopped" else transport.gates[0].set_exception(RuntimeError("broken"))
    await asyncio.wait_for(waiting, 1)
    assert writer.backlog == 0


async def test_who_waits_hears_when_it_is_stopped() -> None:
    writer = PromptWriter(Transport().write)
    writer.send(0)
    waiting = [asyncio.create_task(writer.drained()) for _ in range(2)]
    await turn()
    waiting[0].cancel()
    await turn()
    writer.stop()
    await asyncio.wait_for(waiting[1], 1)


async def test_a_write_goes_on_in_the_context_that_the_writer_was_made_in() -> None:
    transport = Transport()
    writer = PromptWriter(transport.write)
    place.set("in a call")
    writer.send(0)
    transport.gates[0].set_result(None)
    await writer.drained()
    assert transport.places == ["outside"]
