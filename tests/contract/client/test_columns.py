"""Calls of many lanes that travel as one batch, with a column of ordering keys."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

import slotmesh
from slotmesh.codec import OCTET_STREAM
from slotmesh.errors import Failure, Reason
from tests.support.fakes.router import FakeRouter
from tests.support.fakes.router_batches import Batch

pytestmark = pytest.mark.asyncio


@pytest_asyncio.fixture
async def router() -> AsyncIterator[FakeRouter]:
    async with FakeRouter() as router:
        yield router
    assert not router.breaches


@pytest_asyncio.fixture
async def endpoint(router: FakeRouter) -> AsyncIterator[slotmesh.Endpoint]:
    async with slotmesh.connect(router.address, close_grace=0) as mesh:
        yield mesh.endpoint("digits").options(content_type=OCTET_STREAM)


def keys_of(batch: Batch) -> list[str]:
    """The ordering key of each call, however the batch says it."""
    return list(batch.keys) or [batch.options.ordering_key] * len(batch.ids)


async def test_lanes_that_differ_in_their_key_alone_are_one_batch(
    router: FakeRouter, endpoint: slotmesh.Endpoint
) -> None:
    calls = [endpoint.ordered(f"k{number % 3}").add(b"%d" % number) for number in range(6)]
    assert await asyncio.gather(*calls) == [b"%d" % number for number in range(6)]
    (batch,) = router.batches
    assert batch.keys == ["k0", "k1", "k2", "k0", "k1", "k2"]
    assert batch.options.ordering_key == ""
    assert batch.options.method == "add"


async def test_what_differs_in_more_than_the_key_is_a_batch_of_its_own(
    router: FakeRouter, endpoint: slotmesh.Endpoint
) -> None:
    patient = endpoint.options(timeout=5)
    await asyncio.gather(
        endpoint.ordered("a").add(b"1"),
        endpoint.ordered("b").get(b"2"),
        patient.ordered("c").add(b"3"),
        endpoint.ordered("d").add(b"4"),
        endpoint.add(b"5"),
    )
    assert sorted((keys_of(batch), batch.options.method) for batch in router.batches) == [
        ([""], "add"),
        (["a", "d"], "add"),
        (["b"], "get"),
        (["c"], "add"),
    ]


async def test_methods_of_one_lane_keep_their_order_beside_other_lanes(
    router: FakeRouter, endpoint: slotmesh.Endpoint
) -> None:
    a, b = endpoint.ordered("a"), endpoint.ordered("b")
    calls = [a.add(b"a0"), b.add(b"b0"), a.get(b"a1"), a.add(b"a2"), b.get(b"b1"), b.get(b"b2")]
    await asyncio.gather(*calls)
    arrived = [payload for batch in router.batches for payload in batch.payloads]
    assert [payload for payload in arrived if payload.startswith(b"a")] == [b"a0", b"a1", b"a2"]
    assert [payload for payload in arrived if payload.startswith(b"b")] == [b"b0", b"b1", b"b2"]


async def test_a_busy_lane_does_not_fill_the_column(router: FakeRouter, endpoint: slotmesh.Endpoint) -> None:
    busy, other = endpoint.ordered("busy"), endpoint.ordered("other")
    calls = [busy.add(b"%d" % number) for number in range(100)]
    calls.append(other.add(b"o"))
    await asyncio.gather(*calls)
    column, rest = router.batches
    assert column.keys == ["busy"] * 8 + ["other"]
    assert rest.options.ordering_key == "busy"
    assert [*column.payloads[:8], *rest.payloads] == [b"%d" % number for number in range(100)]


async def test_columns_are_sent_again_with_their_keys() -> None:
    async with FakeRouter() as first, FakeRouter() as second:
        first.held = True
        async with slotmesh.connect([first.address, second.address], close_grace=0) as mesh:
            calls = [mesh.endpoint("digits").ordered(f"k{number}").add(number) for number in range(5)]
            await first.until(lambda: first.calls() == 5)
            stream, batch = first.waiting[0]
            stream.answer_ids(batch.ids[1:2], batch.payloads[1:2], batch.options.content_type)
            assert await calls[1] == [1]
            await first.stop()
            assert await asyncio.gather(*calls) == [[number] for number in range(5)]
        resent = [each for each in second.batches if each.resend]
        assert [key for each in resent for key in keys_of(each)] == ["k0", "k2", "k3", "k4"]
        assert [call_id for each in resent for call_id in each.ids] == [1, 3, 4, 5]
        assert len(resent) == 1
        assert not first.breaches
        assert not second.breaches


async def test_outcomes_in_no_order_reach_their_calls(router: FakeRouter, endpoint: slotmesh.Endpoint) -> None:
    router.held = True
    calls = [endpoint.ordered(f"k{number}").add(b"%d" % number) for number in range(40)]
    await router.until(lambda: router.calls() == 40)
    stream, batch = router.waiting[0]
    ids = list(batch.ids)
    jumbled = [*ids[1::2][::-1], 999, *ids[::4], ids[1]]
    stream.answer_ids(jumbled, [b"r%d" % call_id for call_id in jumbled], OCTET_STREAM)
    answered = [*range(1, 40, 2), *range(0, 40, 4)]
    assert await asyncio.gather(*(calls[at] for at in answered)) == [b"r%d" % (at + 1) for at in answered]
    assert not calls[2].done()
    failure = Failure(reason=Reason.QUEUE_FULL, message="full")
    stream.fail(ids[2::4], failure)
    for at in range(2, 40, 4):
        with pytest.raises(slotmesh.QueueFull) as caught:
            await calls[at]
        assert caught.value.call_id == ids[at]


async def test_a_call_taken_back_does_not_leave_with_its_column(
    router: FakeRouter, endpoint: slotmesh.Endpoint
) -> None:
    calls = [endpoint.ordered(f"k{number}").add(b"%d" % number) for number in range(4)]
    calls[1].cancel()
    assert await asyncio.gather(calls[0], *calls[2:]) == [b"0", b"2", b"3"]
    assert router.batches[0].keys == ["k0", "k2", "k3"]


async def test_leaving_a_lane_waits_for_its_calls_in_columns(router: FakeRouter, endpoint: slotmesh.Endpoint) -> None:
    router.held = True
    other = endpoint.ordered("other").add(b"x")
    async with asyncio.timeout(10):
        async with endpoint.ordered("mine") as lane:
            call = lane.add(b"1")
            await router.until(lambda: router.calls() == 2)
            router.release()
    assert call.done()
    assert await other == b"x"
