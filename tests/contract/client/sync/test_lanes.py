"""Lanes of the synchronous client over real gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

import pytest
import pytest_asyncio

import slotmesh
from slotmesh.codec import MSGPACK, decode
from slotmesh.errors import Executed
from tests.contract.odd_failures import odd_fails
from tests.support.fakes.router import FakeRouter

pytestmark = pytest.mark.asyncio

WITHIN_S = 10.0
"""What no wait here comes near."""


@pytest_asyncio.fixture
async def router() -> AsyncIterator[FakeRouter]:
    async with FakeRouter() as router:
        yield router
    assert not router.breaches


@pytest_asyncio.fixture
async def mesh(router: FakeRouter) -> AsyncIterator[slotmesh.SyncMesh]:
    mesh = slotmesh.connect_sync(router.address, close_grace=WITHIN_S)
    yield mesh
    await asyncio.to_thread(mesh.close)


@pytest_asyncio.fixture
async def digits(mesh: slotmesh.SyncMesh) -> slotmesh.SyncEndpoint:
    return await asyncio.to_thread(mesh.endpoint, "digits")


async def test_a_lane_keeps_the_order_of_the_statements(router: FakeRouter, digits: slotmesh.SyncEndpoint) -> None:
    def program(key: str) -> None:
        with digits.ordered(key) as lane:
            futures = []
            for number in range(60):
                futures.append(lane.one.future(3 * number))
                futures.append(digits.ordered(key).two.future(3 * number + 1))
                futures.append(lane.one.options(timeout=9).future(3 * number + 2))
        assert all(future.done() for future in futures), "leaving waits"
        assert [future.result() for future in futures] == [[number] for number in range(180)]

    await asyncio.gather(*(asyncio.to_thread(program, key) for key in ("a", "b", "c")))
    arrived: dict[str, list[int]] = {"a": [], "b": [], "c": []}
    for batch in router.batches:
        keys = batch.keys or [batch.options.ordering_key] * len(batch.ids)
        for key, payload in zip(keys, batch.payloads, strict=True):
            arrived[key] += decode(MSGPACK, payload)
    assert arrived == {key: list(range(180)) for key in "abc"}


async def test_a_call_waits_for_nobody_but_is_in_line(router: FakeRouter, digits: slotmesh.SyncEndpoint) -> None:
    def program() -> None:
        lane = digits.ordered("key")
        before, together = lane.echo.future("before"), lane.echo.map(["a", "b"])
        assert lane.echo("after") == ["after"]
        assert (before.result(), together) == (["before"], [["a"], ["b"]])

    await asyncio.to_thread(program)
    sent = [decode(MSGPACK, payload)[0] for batch in router.batches for payload in batch.payloads]
    assert sent == ["before", "a", "b", "after"]


async def test_leaving_a_lane_by_an_exception_waits_for_nothing(
    router: FakeRouter, digits: slotmesh.SyncEndpoint
) -> None:
    router.held = True

    def program() -> Future[Any]:
        futures: list[Future[Any]] = []
        with suppress(KeyError), digits.ordered("key") as lane:
            futures.append(lane.echo.future(1))
            raise KeyError
        return futures[0]

    future = await asyncio.to_thread(program)
    assert not future.done()
    router.release()
    assert await asyncio.wrap_future(future) == [1]


async def test_a_lane_that_stops_goes_on_after_its_reset(router: FakeRouter, digits: slotmesh.SyncEndpoint) -> None:
    router.answer = odd_fails

    def program() -> None:
        lane = digits.ordered("key", after_failure="stop")
        assert lane.echo(0) == [0]
        with pytest.raises(slotmesh.HandlerError):
            lane.echo(1)
        with pytest.raises(slotmesh.PredecessorFailed) as caught:
            lane.echo(2)
        assert caught.value.executed is Executed.NO
        refused = lane.echo.future(4)
        lane.reset()
        accepted = lane.echo.future(6)
        assert isinstance(refused.exception(WITHIN_S), slotmesh.PredecessorFailed), "it was made before the reset"
        assert accepted.result(WITHIN_S) == [6]

    await asyncio.to_thread(program)
