"""Handlers that yield, from the client's loop to the replica and back: values, pauses, failures, leaving the loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

import slotmesh
from slotmesh import testing
from tests.e2e.yielding_handlers import Speller

pytestmark = pytest.mark.asyncio


@pytest.mark.timeout(90)
async def test_values_flow_through_a_mesh() -> None:
    async with testing.mesh({"Speller": Speller}) as mesh:
        speller = mesh.endpoint("Speller")
        for method in (speller.count, speller.count_in_thread):
            assert [value async for value in method.stream(5000)] == [*range(5000)]
            assert [value async for value in method.unary_stream(1000)] == [*range(1000)]
            assert await method(1000) == [*range(1000)]
        assert [value async for value in speller.echo.stream("a")] == ["a"]

        values: list[int] = []
        with pytest.raises(slotmesh.HandlerError, match="enough"):
            await hand_out(speller.fail_after.stream(300), values.append)
        assert values == [*range(300)]

        large = [value async for value in speller.inflate.stream([1, 3_000_000, 2, 700_000, 3])]
        assert list(map(len, large)) == [1, 3_000_000, 2, 700_000, 3]

        together = await asyncio.gather(*(collect(speller.repeat.stream(letter)) for letter in "abc"))
        assert together == [[letter] * 400 for letter in "abc"]

        # Lanes wait for the end; leaving the loop is one.
        lane = speller.ordered("k")
        closed_before = await lane.closed()
        async with asyncio.timeout(10):
            async with lane.count.stream(10**9) as endless:
                assert [await anext(endless) for _ in range(3)] == [0, 1, 2]
            assert await lane.closed() == closed_before + 1


async def collect(values: AsyncIterator[object]) -> list[object]:
    return [value async for value in values]


async def hand_out(values: AsyncIterator[int], take: Callable[[int], None]) -> None:
    async for value in values:
        take(value)
