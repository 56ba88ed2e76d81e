"""Leaving the values of a handler that yields before they end, over real gRPC."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

import slotmesh
from slotmesh.codec import OCTET_STREAM
from tests.contract.client.test_streaming import all_of
from tests.contract.client.value_streams import taken_back
from tests.support.fakes.counting import count
from tests.support.fakes.router import FakeRouter

pytestmark = pytest.mark.asyncio


@pytest_asyncio.fixture
async def router() -> AsyncIterator[FakeRouter]:
    async with FakeRouter(yields=count) as router:
        yield router
    assert not router.breaches


@pytest_asyncio.fixture
async def digits(router: FakeRouter) -> AsyncIterator[slotmesh.Endpoint]:
    async with slotmesh.connect(router.address, close_grace=5) as mesh:
        yield mesh.endpoint("digits").options(content_type=OCTET_STREAM)


async def test_leaving_the_loop_takes_the_call_back(router: FakeRouter, digits: slotmesh.Endpoint) -> None:
    async for value in digits.count.stream(b"1000000"):
        if value == b"300":
            break
    await router.until(lambda: taken_back(router) == [1])
    await router.until(lambda: not router.streams[0].unanswered)
    assert await digits.echo(b"next") == b"next"


async def test_closing_takes_the_call_back(router: FakeRouter, digits: slotmesh.Endpoint) -> None:
    values = digits.count.stream(b"1000000")
    assert await anext(values) == b"0"
    await values.aclose()
    await values.aclose()
    assert [value async for value in values] == [], "what had come is gone, too"
    async with digits.count.stream(b"1000000") as more:
        assert await anext(more) == b"0"
    await router.until(lambda: taken_back(router) == [1, 2])


async def test_an_iterator_that_is_dropped_takes_its_call_back(router: FakeRouter, digits: slotmesh.Endpoint) -> None:
    values = digits.count.stream(b"1000000")
    await router.until(lambda: router.calls() == 1)
    ring: list[Any] = [values]
    ring.append(ring)
    del values, ring
    gc.collect()
    await router.until(lambda: taken_back(router) == [1])


async def test_a_task_that_is_cancelled_takes_its_call_back(router: FakeRouter, digits: slotmesh.Endpoint) -> None:
    router.held = True
    kept = digits.count.stream(b"1")
    reading = asyncio.create_task(all_of(kept))
    await router.until(lambda: router.calls() == 1)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    await router.until(lambda: taken_back(router) == [1])
    hasty = digits.count.stream(b"1")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(anext(hasty), 0.001)
    assert [value async for value in hasty] == []


async def test_what_was_closed_before_it_was_sent_never_leaves(router: FakeRouter, digits: slotmesh.Endpoint) -> None:
    async with digits.ordered("key") as lane:
        await lane.count.stream(b"1").aclose()
        assert await lane.echo(b"x") == b"x"
    assert [batch.options.method for batch in router.batches] == ["echo"]
    assert not router.cancels


async def test_a_lane_goes_on_after_a_call_that_was_left(router: FakeRouter, digits: slotmesh.Endpoint) -> None:
    async with digits.ordered("key") as lane:
        async for _ in lane.count.stream(b"1000000"):
            break
        assert await lane.echo(b"x") == b"x"
    assert taken_back(router) == [1], "leaving the lane waits for its outcome"


async def test_one_task_at_a_time_takes_values(router: FakeRouter, digits: slotmesh.Endpoint) -> None:
    router.held = True
    values = digits.count.stream(b"1")
    waiting = asyncio.ensure_future(anext(values, b"nothing"))
    await router.until(lambda: router.calls() == 1)
    with pytest.raises(RuntimeError, match="another task"):
        await anext(values)
    await values.aclose()
    assert await waiting == b"nothing", "the one that waits hears that there are no more"
