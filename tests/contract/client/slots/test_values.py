"""Values of a handler that yields, called in a slot of the asyncio client."""

from __future__ import annotations

import asyncio
import gc

import pytest

import slotmesh
from tests.support.fakes.slot_service import FakeSlots

pytestmark = pytest.mark.asyncio


async def test_values_of_a_call(slots: FakeSlots, decode: slotmesh.Endpoint) -> None:
    async with decode.reserve() as slot:
        assert [value async for value in slot.generate.stream(b"1000")] == [b"%d" % number for number in range(1_000)]
    async with decode.reserve() as slot:
        assert [value async for value in slot.generate.stream(b"0")] == []
    assert slots.rpcs == ["ReserveSlot", "DispatchStreaming"] * 2
    assert not slots.requests[1].options.HasField("stream")


async def test_a_failure_comes_after_the_values_before_it(slots: FakeSlots, decode: slotmesh.Endpoint) -> None:
    async with decode.reserve() as slot:
        values = slot.generate.stream(b"2!")
        assert [await anext(values), await anext(values)] == [b"0", b"1"]
        with pytest.raises(slotmesh.HandlerError) as caught:
            await anext(values)
        assert (caught.value.endpoint, caught.value.method) == ("decode", "generate")
        assert [value async for value in values] == [], "it is told once"
    assert slots.count("ReleaseSlot") == 0


async def test_breaking_off_takes_the_call_back(slots: FakeSlots, decode: slotmesh.Endpoint) -> None:
    async with decode.reserve() as slot:
        async for _ in slot.generate.stream(b"1000000"):
            break
        gc.collect()
        await slots.until_free()
    assert slots.rpcs == ["ReserveSlot", "DispatchStreaming"], "a value had come: it had reached its replica"


async def test_closing_the_values(slots: FakeSlots, decode: slotmesh.Endpoint) -> None:
    gate = slots.hold("DispatchStreaming")
    async with decode.reserve() as slot:
        values = slot.generate.stream(b"1")
        waiting = asyncio.ensure_future(anext(values, b"nothing"))
        await slots.until(lambda: slots.count("DispatchStreaming") == 1)
        await values.aclose()
        assert await waiting == b"nothing"
    gate.set()
    await slots.until_free()
    assert slots.table.states() == ["released"], "the call may not have reached its replica"


async def test_an_exception_takes_values_back(slots: FakeSlots, decode: slotmesh.Endpoint) -> None:
    streams = []

    async def program() -> None:
        async with decode.reserve() as slot:
            streams.append(slot.generate.stream(b"1000000"))
            await anext(streams[0])
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await program()
    await slots.until_free()
    assert [value async for value in streams[0]] == []
