"""Iterating over the values of handlers that yield, over real gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

import slotmesh
from slotmesh.codec import MSGPACK, OCTET_STREAM, DecodeError, encode
from slotmesh.errors import Executed, Reason
from slotmesh.v1 import call_pb2
from tests.contract.client.value_streams import failure_of, taken_back
from tests.support.fakes.counting import count, counted
from tests.support.fakes.router import FakeRouter, Response

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


# -- values ------------------------------------------------------------------------------------------------------------


async def test_values_come_one_by_one_in_order_until_the_handler_has_ended(
    router: FakeRouter, digits: slotmesh.Endpoint
) -> None:
    assert [value async for value in digits.count.stream(b"5")] == counted(5)
    assert [value async for value in digits.count.stream(b"0")] == []
    assert [(each.options.method, each.options.stream.each_value) for each in router.batches] == [("count", True)] * 2
    assert not router.takes, "calls that have ended need no credit"


async def test_values_are_results_of_the_content_type_and_of_the_type_wanted(
    router: FakeRouter, digits: slotmesh.Endpoint
) -> None:
    router.yields = lambda _: (encode(MSGPACK, number) for number in range(3))
    method = digits.options(content_type=MSGPACK).count
    assert [value async for value in method.stream(3)] == [0, 1, 2]
    assert [value async for value in method.returning(int).stream(3)] == [0, 1, 2]
    strings = method.returning(str).stream(3)
    with pytest.raises(DecodeError, match=r"digits\.count .* str"):
        await anext(strings)
    assert [value async for value in strings] == [], "a value that is not what was asked for ends it"


async def test_values_and_ordinary_calls_share_a_stream(router: FakeRouter, digits: slotmesh.Endpoint) -> None:
    values = digits.count.stream(b"3")
    assert await digits.echo(b"x") == b"x"
    assert await digits.echo.map([b"y"] * 3) == [b"y"] * 3
    assert [value async for value in values] == counted(3)
    assert router.opened == 1
    assert list(router.openings[0].features) == ["chunks", "take_items", "blocks"]


async def test_the_call_is_made_when_the_iterator_is_in_line_with_the_others(
    router: FakeRouter, digits: slotmesh.Endpoint
) -> None:
    router.held = True
    async with digits.ordered("key") as lane:
        first, values, last = lane.echo(b"before"), lane.count.stream(b"2"), lane.echo(b"after")
        await router.until(lambda: router.calls() == 3)
        arrived = [(each.ids[0], each.options.method, each.options.ordering_key) for each in router.batches]
        assert arrived == [(1, "echo", "key"), (2, "count", "key"), (3, "echo", "key")]
        router.release()
        assert (await first, await last) == (b"before", b"after")
        assert [value async for value in values] == counted(2)


async def test_calls_that_stream_travel_as_one_batch(router: FakeRouter, digits: slotmesh.Endpoint) -> None:
    many = [digits.count.stream(b"%d" % number) for number in range(50)]
    for number, values in enumerate(many):
        assert [value async for value in values] == counted(number)
    assert [len(batch.ids) for batch in router.batches] == [50]


async def test_lanes_have_values_of_their_own(router: FakeRouter, digits: slotmesh.Endpoint) -> None:
    lanes = [digits.ordered(f"key {number}") for number in range(50)]
    many = [lane.count.stream(b"%d" % number) for number, lane in enumerate(lanes)]
    left = many.pop(7)
    await left.aclose()
    for number, values in enumerate([*many[:7], left, *many[7:]]):
        assert [value async for value in values] == counted(number if values is not left else 0)
    broken = lanes[3].count.stream(b"1!")
    assert await anext(broken) == b"0"
    assert isinstance(await failure_of(broken), slotmesh.HandlerError)


async def test_a_view_has_its_options(router: FakeRouter, digits: slotmesh.Endpoint) -> None:
    slow = digits.options(timeout=30, metadata={"who": "me"}).count
    assert [value async for value in slow.stream(b"1")] == [b"0"]
    options = router.batches[0].options
    assert 0 < options.timeout.ToTimedelta().total_seconds() <= 30, "what is left of it"
    assert dict(options.metadata) == {"who": "me"}
    with pytest.raises(TypeError, match=r"digits\.count: calls without a reply"):
        digits.options(reply=False).count.stream(b"1")
    with pytest.raises(TypeError, match=r"digits\.count: "):
        digits.count.stream(1.5)
    assert router.calls() == 1


async def test_a_large_value_comes_in_chunks(router: FakeRouter, digits: slotmesh.Endpoint) -> None:
    router.held = True
    values = digits.count.stream(b"3")
    await router.until(lambda: router.calls() == 1)
    (stream,) = router.streams
    stream.say_values([1], [b"small"], OCTET_STREAM)
    for at, part in enumerate((b"x" * 10, b"y" * 10)):
        stream.say(Response(chunk=call_pb2.Chunk(call_id=1, offset=at * 10, total=20, data=part)))
    batch = call_pb2.ResultBatch(
        call_ids=[1, 1], payloads=[b"", b"after"], chunked_sizes=[20, 0], content_type=OCTET_STREAM, partial=True
    )
    stream.say(Response(results=call_pb2.ResultFrame(batches=[batch])))
    assert [await anext(values) for _ in range(3)] == [b"small", b"x" * 10 + b"y" * 10, b"after"]
    stream.say(Response(results=call_pb2.ResultFrame(batches=[batch])))
    failure = await failure_of(values)
    assert "not complete" in str(failure)
    await router.until(lambda: taken_back(router) == [1])


# -- credit ------------------------------------------------------------------------------------------------------------


async def test_a_slow_loop_holds_back_its_own_handler_only(router: FakeRouter, digits: slotmesh.Endpoint) -> None:
    slow = digits.count.stream(b"1000000")
    assert await anext(slow) == b"0"
    assert len([value async for value in digits.count.stream(b"5000")]) == 5_000
    (stream,) = router.streams
    assert stream.generators[1].stepped == 256
    for _ in range(127):
        await anext(slow)
    await router.until(lambda: stream.generators[1].stepped == 256 + 128)
    assert sum(frame.get(1, 0) for frame in router.takes) == 128, "what arrived was not taken"
    assert len(router.takes) <= 1 + 5_000 / 128
    await slow.aclose()


async def test_credit_is_of_bytes_too(router: FakeRouter, digits: slotmesh.Endpoint) -> None:
    router.yields = lambda _: (b"x" * 200_000 for _ in range(40))
    values = digits.count.stream(b"")
    await anext(values)
    (stream,) = router.streams
    assert stream.generators[1].stepped == 6, "the one that passes 1 MiB is the last"
    assert len([value async for value in values]) == 39


async def test_takes_of_many_calls_share_a_frame(router: FakeRouter, digits: slotmesh.Endpoint) -> None:
    many = [digits.count.stream(b"300") for _ in range(100)]
    for values in many:
        for _ in range(256):
            await anext(values)
    await router.until(lambda: all(each.is_over for each in router.streams[0].generators.values()))
    assert len(router.takes) < 20
    for values in many:
        assert len([value async for value in values]) == 300 - 256


# -- failures ----------------------------------------------------------------------------------------------------------


async def test_a_failure_comes_after_the_values_before_it(router: FakeRouter, digits: slotmesh.Endpoint) -> None:
    values = digits.count.stream(b"3!")
    await digits.echo(b"all is here")
    assert [await anext(values) for _ in range(3)] == counted(3)
    failure = await failure_of(values)
    assert isinstance(failure, slotmesh.HandlerError)
    assert (failure.endpoint, failure.method, failure.call_id) == ("digits", "count", 1)
    assert [value async for value in values] == [], "it is told once"
    assert not router.cancels


async def test_a_payload_that_is_too_large_fails_in_the_iterator(router: FakeRouter, digits: slotmesh.Endpoint) -> None:
    await digits.echo(b"connected")
    failure = await failure_of(digits.count.stream(b"x" * (router.max_payload_bytes + 1)))
    assert (failure.reason, failure.executed) == (Reason.PAYLOAD_TOO_LARGE, Executed.NO)


async def test_a_stream_that_breaks_takes_the_values_with_it(router: FakeRouter, digits: slotmesh.Endpoint) -> None:
    router.set_window(3, 2**20)
    await digits.echo(b"connected")
    router.held = True
    sent, ordinary = digits.count.stream(b"9"), digits.echo(b"again")
    other, waiting = digits.echo(b"other"), digits.recount.stream(b"2")
    await router.until(lambda: router.calls() == 4)
    router.streams[0].say_values([2], [b"0"], OCTET_STREAM)
    assert await anext(sent) == b"0"
    router.streams[0].say_values([2], [b"1"], OCTET_STREAM)
    await asyncio.sleep(0)
    router.break_streams()
    router.waiting.clear()
    router.held = False
    assert (await ordinary, await other) == (b"again", b"other")
    assert [value async for value in waiting] == counted(2), "what had not been sent goes over the next stream"
    failure = await last_failure(sent)
    assert (failure.reason, failure.executed) == (Reason.ROUTER_LOST, Executed.YES)
    assert str(failure).endswith("had reported the outcome of the call; some values of the call had arrived")
    opening = router.openings[1]
    assert [(each.first, each.last) for each in opening.unanswered] == [(3, 4)]
    resent = [list(batch.ids) for batch in router.batches if batch.resend]
    assert [call_id for ids in resent for call_id in ids] == [3, 4]


async def last_failure(values: slotmesh.ValueStream[Any]) -> slotmesh.SlotmeshError:
    """Whatever values came before it."""
    with pytest.raises(slotmesh.SlotmeshError) as caught:
        async for _ in values:
            pass
    return caught.value


async def test_a_mesh_that_is_closed_fails_what_is_left(router: FakeRouter) -> None:
    router.held = True
    async with slotmesh.connect(router.address) as mesh:
        digits = mesh.endpoint("digits").options(content_type=OCTET_STREAM)
        values, waited = digits.count.stream(b"9"), digits.count.stream(b"9")
        waiting = asyncio.create_task(failure_of(waited))
        await router.until(lambda: router.calls() == 2)
        router.streams[0].say_values([1], [b"0"], OCTET_STREAM)
        assert await anext(values) == b"0"
        router.streams[0].say_values([1], [b"1"], OCTET_STREAM)
        await mesh.aclose(0)
        assert isinstance(await waiting, slotmesh.CallCancelled)
        assert isinstance(await last_failure(values), slotmesh.CallCancelled)
        with pytest.raises(RuntimeError, match="closed"):
            digits.count.stream(b"1")
    await router.until(lambda: sorted(taken_back(router)) == [1, 2])


async def test_a_mesh_waits_for_loops_that_go_on(router: FakeRouter) -> None:
    async with slotmesh.connect(router.address, close_grace=10) as mesh:
        values = mesh.endpoint("digits").options(content_type=OCTET_STREAM).count.stream(b"2000")
        reading = asyncio.create_task(all_of(values))
        await router.until(lambda: bool(router.batches))
    assert await reading == counted(2_000)


async def all_of(values: slotmesh.ValueStream[bytes]) -> list[bytes]:
    return [value async for value in values]


async def test_what_does_not_belong_to_a_call_that_streams_is_passed_over(
    router: FakeRouter, digits: slotmesh.Endpoint
) -> None:
    router.held = True
    values, ordinary, together = digits.count.stream(b"1"), digits.echo(b"x"), digits.echo.map([b"y"])
    await router.until(lambda: router.calls() == 3)
    (stream,) = router.streams
    stream.say_values([2, 3, 1, 900], [b"?", b"?", b"!", b"?"], OCTET_STREAM)
    stream.end_ids([1])
    router.waiting = [each for each in router.waiting if each[1].ids[0] != 1]
    router.release()
    assert (await ordinary, await together) == (b"x", [b"y"])
    stream.say_values([1], [b"late"], OCTET_STREAM)
    assert await digits.echo(b"it is here") == b"it is here"
    assert [value async for value in values] == [b"!"]


async def test_values_of_another_content_type_fail_the_call(router: FakeRouter, digits: slotmesh.Endpoint) -> None:
    router.held = True
    values = digits.count.stream(b"1")
    await router.until(lambda: router.calls() == 1)
    router.streams[0].say_values([1, 1], [b"a", b"b"], MSGPACK)
    assert MSGPACK in str(await failure_of(values))
    await router.until(lambda: taken_back(router) == [1])


async def test_one_result_where_values_were_asked_for_is_the_only_one(
    router: FakeRouter, digits: slotmesh.Endpoint
) -> None:
    router.held = True
    gone = digits.count.stream(b"1")
    many = [digits.count.stream(b"1") for _ in range(5)]
    await router.until(lambda: router.calls() == 6)
    await gone.aclose()
    router.streams[0].answer_ids([6, 4, 1, 2], [b"6", b"4", b"1", b"2"], OCTET_STREAM)
    router.streams[0].answer_ids([3, 5], [b"3", b"5"], OCTET_STREAM)
    for number, values in enumerate(many, 2):
        assert [value async for value in values] == [b"%d" % number]
    assert [value async for value in gone] == []
