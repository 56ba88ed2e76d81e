"""Lanes that stop at a failure, as far as the client can see to it."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

import slotmesh
from slotmesh.codec import OCTET_STREAM
from slotmesh.errors import Executed, Failure, Reason
from tests.support.fakes.router import FakeRouter

pytestmark = pytest.mark.asyncio

FAILED = Failure(reason=Reason.HANDLER_ERROR, message="no", executed=Executed.YES)


@pytest_asyncio.fixture
async def router() -> AsyncIterator[FakeRouter]:
    async with FakeRouter() as router:
        yield router
    assert not router.breaches


@pytest_asyncio.fixture
async def endpoint(router: FakeRouter) -> AsyncIterator[slotmesh.Endpoint]:
    async with slotmesh.connect(router.address, close_grace=0) as mesh:
        yield mesh.endpoint("digits").options(content_type=OCTET_STREAM)


async def fail_one(router: FakeRouter, lane: slotmesh.Lane, payload: bytes = b"bad") -> None:
    """A call of the lane fails."""
    router.answer = lambda batch: [FAILED if each == payload else each for each in batch.payloads]
    with pytest.raises(slotmesh.HandlerError):
        await lane.add(payload)


async def refused(call: asyncio.Future[Any]) -> slotmesh.PredecessorFailed:
    with pytest.raises(slotmesh.PredecessorFailed) as caught:
        await call
    return caught.value


async def test_the_generation_travels_with_the_calls(router: FakeRouter, endpoint: slotmesh.Endpoint) -> None:
    lane = endpoint.ordered("k", after_failure="stop")
    await lane.add(b"1")
    lane.reset()
    await lane.add(b"2")
    await endpoint.ordered("k").add(b"3")
    await endpoint.add(b"4")
    assert [batch.options.stream.stop_generation for batch in router.batches] == [1, 2, 0, 0]


async def test_after_a_failure_nothing_is_sent_until_reset(router: FakeRouter, endpoint: slotmesh.Endpoint) -> None:
    lane = endpoint.ordered("k", after_failure="stop")
    add = lane.add
    await fail_one(router, lane)
    error = await refused(add(b"1"))
    assert error.executed is Executed.NO
    assert error.status == "ABORTED"
    assert "HANDLER_ERROR" in str(error)
    assert "lane.reset()" in str(error)
    await refused(lane.method("get")(b"2"))
    await refused(endpoint.ordered("k", after_failure="stop").add(b"3"))
    with pytest.raises(slotmesh.PredecessorFailed):
        await add.map([b"4", b"5"])
    assert router.calls() == 1
    assert await endpoint.ordered("other", after_failure="stop").add(b"6") == b"6"
    assert await endpoint.ordered("k").add(b"7") == b"7", "calls that continue are not stopped"
    lane.reset()
    assert await add(b"8") == b"8"
    assert await add.returning(bytes)(b"9") == b"9"


async def test_what_waits_behind_a_failure_is_not_sent(router: FakeRouter, endpoint: slotmesh.Endpoint) -> None:
    router.set_window(2, 1_000)
    router.held = True
    lane, other = endpoint.ordered("k", after_failure="stop"), endpoint.ordered("o", after_failure="stop")
    warm_up = endpoint.get(b"w")
    await router.until(lambda: router.calls() == 1)
    router.release()
    await warm_up
    router.held = True
    router.set_window(2, 1_000)
    again = endpoint.get(b"w")
    await router.until(lambda: router.calls() == 2)
    router.release()
    await again
    router.held = True
    calls = [lane.add(b"%d" % number) for number in range(12)]
    beside = other.add(b"o")
    later = lane.get.map([b"x", b"y"], return_exceptions=True)
    await router.until(lambda: router.calls() == 4)
    stream, batch = router.waiting.pop()
    stream.fail(list(batch.ids)[:1], FAILED)
    with pytest.raises(slotmesh.HandlerError):
        await calls[0]
    for call in calls[2:]:
        await refused(call)
    assert [type(each) for each in await later] == [slotmesh.PredecessorFailed] * 2
    stream.answer_ids(list(batch.ids)[1:], batch.payloads[1:], OCTET_STREAM)
    router.release()
    assert await calls[1] == b"1", "what was sent is the router's to judge"
    assert await beside == b"o"
    assert router.calls() == 5


async def test_a_call_taken_back_before_it_left_stops_those_behind_it(
    router: FakeRouter, endpoint: slotmesh.Endpoint
) -> None:
    lane, other = endpoint.ordered("k", after_failure="stop"), endpoint.ordered("o", after_failure="stop")
    calls = [lane.add(b"%d" % number) for number in range(12)]
    beside = other.add(b"o")
    calls[2].cancel()
    assert await asyncio.gather(*calls[:2], beside) == [b"0", b"1", b"o"]
    for call in calls[3:]:
        assert "CANCELLED" in str(await refused(call))
    await refused(lane.add(b"x"))
    lane.reset()
    assert await lane.add(b"y") == b"y"
    assert router.calls() == 4


async def test_a_call_that_is_too_large_stops_those_behind_it(router: FakeRouter, endpoint: slotmesh.Endpoint) -> None:
    lane = endpoint.ordered("k", after_failure="stop")
    assert await lane.add(b"0") == b"0"
    before = lane.add(b"1")
    with pytest.raises(slotmesh.PayloadTooLarge):
        await lane.add(b"x" * (4 * 1024 * 1024 + 1))
    await refused(lane.add(b"2"))
    assert await before == b"1"


async def test_calls_behind_a_failure_are_not_sent_again() -> None:
    async with FakeRouter() as first, FakeRouter() as second:
        first.held = True
        async with slotmesh.connect([first.address, second.address], close_grace=0) as mesh:
            endpoint = mesh.endpoint("digits").options(content_type=OCTET_STREAM)
            lane = endpoint.ordered("k", after_failure="stop")
            calls = [lane.add(b"%d" % number) for number in range(4)]
            free = endpoint.get(b"free")
            await first.until(lambda: first.calls() == 5)
            stream, batch = first.waiting[0]
            stream.fail(list(batch.ids)[1:2], FAILED)
            with pytest.raises(slotmesh.HandlerError):
                await calls[1]
            await first.stop()
            assert await calls[0] == b"0", "what was made before the failed call is sent again"
            assert await free == b"free"
            for call in calls[2:]:
                assert (await refused(call)).executed is Executed.UNKNOWN, "they may have shared its batch"
        assert sorted(payload for each in second.batches for payload in each.payloads) == [b"0", b"free"]
        assert not first.breaches
        assert not second.breaches


async def test_calls_behind_one_that_was_given_up_are_not_sent_again() -> None:
    async with FakeRouter() as first, FakeRouter() as second:
        first.held = first.deaf_to_cancels = True
        async with slotmesh.connect([first.address, second.address], close_grace=0) as mesh:
            lane = mesh.endpoint("digits").options(content_type=OCTET_STREAM).ordered("k", after_failure="stop")
            calls = [lane.add(b"%d" % number) for number in range(3)]
            await first.until(lambda: first.calls() == 3)
            calls[1].cancel()
            await first.stop()
            assert await calls[0] == b"0"
            assert (await refused(calls[2])).executed is Executed.UNKNOWN
        assert [payload for each in second.batches for payload in each.payloads] == [b"0"]


async def test_where_the_failed_call_may_have_run_those_behind_it_may_too() -> None:
    async with FakeRouter() as first, FakeRouter() as second:
        first.held = True
        async with slotmesh.connect([first.address, second.address], close_grace=0) as mesh:
            lane = mesh.endpoint("digits").ordered("k", after_failure="stop")
            calls = [lane.add(number) for number in range(2)]
            await first.until(lambda: first.calls() == 2)
            stream, batch = first.waiting[0]
            lost = Failure(reason=Reason.REPLICA_LOST, message="gone", executed=Executed.UNKNOWN)
            stream.fail(list(batch.ids)[:1], lost)
            with pytest.raises(slotmesh.ReplicaLost):
                await calls[0]
            await first.stop()
            assert (await refused(calls[1])).executed is Executed.UNKNOWN
            assert (await refused(lane.add(2))).executed is Executed.NO


async def test_a_lane_that_nobody_held_begins_above_what_has_failed(
    router: FakeRouter, endpoint: slotmesh.Endpoint
) -> None:
    lane = endpoint.ordered("k", after_failure="stop")
    await fail_one(router, lane)
    del lane
    await endpoint.get(b"the event loop forgets the failed future")
    gc.collect()
    assert await endpoint.ordered("k", after_failure="stop").add(b"1") == b"1"
    assert router.batches[-1].options.stream.stop_generation == 2


async def test_after_failure_is_one_of_two(endpoint: slotmesh.Endpoint) -> None:
    wrong: Any = "explode"
    with pytest.raises(slotmesh.BadRequest, match="after_failure"):
        endpoint.ordered("k", after_failure=wrong)
