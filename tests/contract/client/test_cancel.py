"""Calls that their callers cancel: the router gets the cancel, and nothing else changes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial

import pytest
import pytest_asyncio

import slotmesh
from slotmesh.codec import OCTET_STREAM
from slotmesh.v1 import call_pb2
from tests.support.fakes.router import FakeRouter, Response

pytestmark = pytest.mark.asyncio


@pytest_asyncio.fixture
async def router() -> AsyncIterator[FakeRouter]:
    async with FakeRouter(window_calls=10) as router:
        router.held = True
        yield router
    assert not router.breaches


@pytest_asyncio.fixture
async def digits(router: FakeRouter) -> AsyncIterator[slotmesh.Endpoint]:
    async with slotmesh.connect(router.address, close_grace=5) as mesh:
        yield mesh.endpoint("digits").options(content_type=OCTET_STREAM)


def taken_back(router: FakeRouter) -> list[int]:
    """Ids, in the order in which the router heard of them."""
    return [call_id for frame in router.cancels for each in frame for call_id in each]


def has_heard(router: FakeRouter, calls: int, cancels: int) -> bool:
    return router.calls() == calls and len(taken_back(router)) == cancels


async def test_the_router_hears_of_calls_that_nobody_awaits_any_more(
    router: FakeRouter, digits: slotmesh.Endpoint
) -> None:
    calls = [digits.echo(b"%d" % number) for number in range(10)]
    await router.until(lambda: router.calls() == 10)
    for number in (1, 2, 3, 7):
        calls[number].cancel()
    await router.until(lambda: bool(router.cancels))
    assert router.cancels == [[range(2, 5), range(8, 9)]], "neighbours as one range, all in one frame"
    router.release()
    assert [await call for call in calls if not call.cancelled()] == [b"0", b"4", b"5", b"6", b"8", b"9"]
    assert len(router.cancels) == 1


async def test_a_task_that_is_cancelled_takes_its_call_back(router: FakeRouter, digits: slotmesh.Endpoint) -> None:
    async def caller() -> bytes:
        result: bytes = await digits.echo(b"x")
        return result

    patient, hasty = asyncio.create_task(caller()), asyncio.create_task(caller())
    await router.until(lambda: router.calls() == 2)
    hasty.cancel()
    await router.until(lambda: router.cancels == [[range(2, 3)]])
    late = digits.echo(b"y")
    await router.until(lambda: router.calls() == 3)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(late, 0.001)
    await router.until(lambda: router.cancels == [[range(2, 3)], [range(3, 4)]])
    router.release()
    assert await patient == b"x"
    assert hasty.cancelled()


async def test_a_map_is_taken_back_as_a_whole_but_for_what_was_answered(
    router: FakeRouter, digits: slotmesh.Endpoint
) -> None:
    together = digits.echo.map([b"%d" % number for number in range(30)])
    await router.until(lambda: router.calls() == 10)
    (stream, batch), *_ = router.waiting
    stream.answer_ids(list(batch.ids)[2:5], batch.payloads[2:5], OCTET_STREAM)
    await router.until(lambda: router.calls() == 13)
    together.cancel()
    await router.until(lambda: taken_back(router) == [1, 2, *range(6, 14)])
    router.held = False
    assert await digits.echo(b"next") == b"next"
    assert router.calls() == 14, "what had not left never leaves"


async def test_a_call_that_was_taken_back_counts_until_its_outcome_came(
    router: FakeRouter, digits: slotmesh.Endpoint
) -> None:
    router.deaf_to_cancels = True
    calls = [digits.echo(b"%d" % number) for number in range(25)]
    await router.until(lambda: router.calls() == 10)
    for call in calls[:10]:
        call.cancel()
    await router.until(lambda: router.cancels == [[range(1, 11)]])
    (stream, batch), *_ = router.waiting
    router.waiting.clear()
    stream.answer_ids(list(batch.ids)[:4], batch.payloads[:4], OCTET_STREAM)
    await router.until(lambda: router.calls() == 14)
    assert len(stream.unanswered) == 10
    stream.answer_ids(list(batch.ids)[4:], batch.payloads[4:], OCTET_STREAM)
    router.release()
    assert await asyncio.gather(*calls[10:]) == [b"%d" % number for number in range(10, 25)]
    assert all(call.cancelled() for call in calls[:10])
    assert len(router.cancels) == 1


async def test_a_second_answer_after_the_cancelled_one_changes_nothing(
    router: FakeRouter, digits: slotmesh.Endpoint
) -> None:
    first = digits.echo(b"x")
    await router.until(lambda: router.calls() == 1)
    first.cancel()
    await router.until(lambda: bool(router.cancels))
    router.release()  # answers the call that was answered as cancelled
    assert await digits.echo.map([b"y"] * 20) == [b"y"] * 20
    assert first.cancelled()


async def test_leaving_a_lane_waits_for_the_outcome_of_what_was_taken_back(
    router: FakeRouter, digits: slotmesh.Endpoint
) -> None:
    router.deaf_to_cancels = True

    async def use_lane() -> None:
        async with digits.ordered("key") as lane:
            lane.echo(b"x").cancel()  # never leaves
            taken_back = lane.echo(b"y")
            await router.until(lambda: router.calls() == 1)
            taken_back.cancel()

    using = asyncio.create_task(use_lane())
    await router.until(lambda: bool(router.cancels))
    assert not using.done()
    router.release()
    await using


async def test_calls_that_somebody_awaits_are_left_alone(router: FakeRouter, digits: slotmesh.Endpoint) -> None:
    alone, together = digits.echo(b"x"), digits.echo.map([b"y", b"z"])
    await router.until(lambda: router.calls() == 3)
    for number in range(3):  # each time it has looked at all others again
        unwanted = digits.other(b"unwanted")
        await router.until(partial(has_heard, router, 4 + number, number))
        unwanted.cancel()
        await router.until(partial(has_heard, router, 4 + number, number + 1))
    assert taken_back(router) == [4, 5, 6]
    router.release()
    assert (await alone, await together) == (b"x", [b"y", b"z"])


async def test_a_mesh_that_is_left_tells_of_what_was_taken_back_before(router: FakeRouter) -> None:
    async with slotmesh.connect(router.address, close_grace=30) as mesh:
        call = mesh.endpoint("digits").echo(1)
        await router.until(lambda: router.calls() == 1)
        call.cancel()
    assert router.cancels == [[range(1, 2)]]
    await router.until(lambda: not router.streams)
    assert router.half_closed == 1


async def test_a_router_that_leaves_hears_of_what_was_taken_back_before(
    router: FakeRouter, digits: slotmesh.Endpoint
) -> None:
    call = digits.echo(b"x")
    await router.until(lambda: router.calls() == 1)
    call.cancel()
    router.say(Response(go_away=call_pb2.GoAway(message="I leave")))
    await router.until(lambda: not router.streams)
    assert router.cancels == [[range(1, 2)]]


async def test_what_was_taken_back_on_a_stream_that_broke_is_forgotten(
    router: FakeRouter, digits: slotmesh.Endpoint
) -> None:
    router.deaf_to_cancels = True
    calls = [digits.echo(b"%d" % number) for number in range(4)]
    await router.until(lambda: router.calls() == 4)
    calls[0].cancel()
    await router.until(lambda: bool(router.cancels))
    calls[1].cancel()
    router.break_streams()
    router.waiting.clear()
    router.held = False
    assert await asyncio.gather(*calls[2:]) == [b"2", b"3"]
    assert await digits.echo(b"new") == b"new"
    assert router.opened == 2
    assert [list(batch.ids) for batch in router.batches] == [[1, 2, 3, 4], [3, 4], [5]]
    assert [(each.first, each.last) for each in router.openings[1].unanswered] == [(3, 4)]


async def test_a_storm_of_calls_taken_back_is_a_few_frames(router: FakeRouter, digits: slotmesh.Endpoint) -> None:
    router.set_window(10_000, 2**20)
    first = digits.echo(b"first")
    await router.until(lambda: router.calls() == 1)
    calls = [digits.echo(b"x") for _ in range(5_000)]
    await router.until(lambda: router.calls() == 5_001)
    for call in calls[::2]:
        call.cancel()
    await router.until(lambda: len(taken_back(router)) == 2_500)
    assert len(router.cancels) < 5
    router.release()
    assert await first == b"first"
    assert await asyncio.gather(*calls[1::2]) == [b"x"] * 2_500
