"""The client over real gRPC: what reaches the router, and what comes back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
import pytest_asyncio
from google.protobuf import wrappers_pb2

import slotmesh
from slotmesh.codec import JSON, MSGPACK, OCTET_STREAM, PROTOBUF, DecodeError, decode, encode
from slotmesh.errors import Failure
from slotmesh.streams.pacing import FULL_CALLS
from slotmesh.v1 import call_pb2
from tests.support.fakes.router import FakeRouter, Response
from tests.support.fakes.router_batches import Batch
from tests.support.fakes.router_stream import FakeStream

pytestmark = pytest.mark.asyncio


@pytest_asyncio.fixture
async def router() -> AsyncIterator[FakeRouter]:
    async with FakeRouter() as router:
        yield router
    assert not router.breaches


@pytest_asyncio.fixture
async def mesh(router: FakeRouter) -> AsyncIterator[slotmesh.Mesh]:
    async with slotmesh.connect(router.address) as mesh:
        yield mesh


class Label(msgspec.Struct):
    digit: int


def first_argument(batch: Batch) -> Sequence[bytes | Failure]:
    """Answers each call with its first argument."""
    return [encode(MSGPACK, decode(MSGPACK, payload)[0]) for payload in batch.payloads]


async def test_the_first_steps(router: FakeRouter, mesh: slotmesh.Mesh) -> None:
    router.answer = first_argument
    digits = mesh.endpoint("digits")
    assert await digits.classify([1, 2]) == [1, 2]
    assert await digits.classify.map([[1], [2]]) == [[1], [2]]
    async with digits.ordered("session-42") as lane:
        a, b = lane.add(1), lane.add(2)
        assert (await a, await b) == (1, 2)
    assert router.opened == 1
    assert router.streams[0].endpoint == "digits"
    methods = [(batch.options.method, batch.options.ordering_key, len(batch.payloads)) for batch in router.batches]
    assert methods == [("classify", "", 1), ("classify", "", 2), ("add", "session-42", 2)]


async def test_neighbours_travel_in_one_frame_and_one_batch(router: FakeRouter, mesh: slotmesh.Mesh) -> None:
    echo = mesh.endpoint("digits").echo
    results = await asyncio.gather(*(echo(number) for number in range(FULL_CALLS)))
    assert results == [[number] for number in range(FULL_CALLS)]
    assert [(batch.frame, len(batch.payloads)) for batch in router.batches] == [(1, FULL_CALLS)]


async def test_many_calls_travel_in_two_halves(router: FakeRouter, mesh: slotmesh.Mesh) -> None:
    echo = mesh.endpoint("digits").echo
    await asyncio.gather(*(echo(number) for number in range(1000)))
    assert [(batch.frame, len(batch.payloads)) for batch in router.batches] == [(1, 500), (2, 500)]


async def test_hundreds_of_lanes_travel_in_one_frame(router: FakeRouter, mesh: slotmesh.Mesh) -> None:
    digits = mesh.endpoint("digits")
    lanes = [digits.ordered(f"key-{number}") for number in range(FULL_CALLS)]
    assert await asyncio.gather(*(lane.echo(7) for lane in lanes)) == [[7]] * FULL_CALLS
    assert {batch.frame for batch in router.batches} == {1}
    assert [batch.keys for batch in router.batches] == [[f"key-{number}" for number in range(FULL_CALLS)]]


async def test_calls_made_while_a_frame_is_written_fill_the_next_one(router: FakeRouter, mesh: slotmesh.Mesh) -> None:
    echo = mesh.endpoint("digits").echo

    async def caller() -> None:
        for number in range(20):
            assert await echo(number) == [number]

    await asyncio.gather(*(caller() for _ in range(100)))
    assert router.calls() == 2_000
    assert router.batches[-1].frame < 200, "calls did not gather"


async def test_a_lane_keeps_the_order_of_its_calls_across_methods_and_views(
    router: FakeRouter, mesh: slotmesh.Mesh
) -> None:
    digits = mesh.endpoint("digits")
    one, two = digits.ordered("key"), digits.options(timeout=5).ordered("key")
    made: list[asyncio.Future[Any]] = []
    for number in range(0, 300, 3):
        made += [one.add(number), two.add(number + 1), one.get(number + 2)]
    assert await asyncio.gather(*made) == [[number] for number in range(300)]
    arrived = [decode(MSGPACK, payload)[0] for batch in router.batches for payload in batch.payloads]
    assert arrived == list(range(300))


async def test_a_map_keeps_its_place_among_the_calls_of_its_lane(router: FakeRouter, mesh: slotmesh.Mesh) -> None:
    async with mesh.endpoint("digits").ordered("key") as lane:
        lane.add(0)
        lane.add.map([1, 2])
        lane.add(3)
        lane.add.map([4])
    arrived = [decode(MSGPACK, payload)[0] for batch in router.batches for payload in batch.payloads]
    assert arrived == [0, 1, 2, 3, 4]


async def test_leaving_a_lane_waits_for_its_calls(router: FakeRouter, mesh: slotmesh.Mesh) -> None:
    router.held = True
    digits = mesh.endpoint("digits")

    async def use_lane() -> list[asyncio.Future[Any]]:
        async with digits.ordered("key") as lane:
            return [lane.add(1), lane.method("add").map([2, 3])]

    using = asyncio.create_task(use_lane())
    await router.until(lambda: router.calls() == 3)
    assert not using.done()
    router.release()
    results = await using
    assert all(future.done() for future in results)
    assert [await future for future in results] == [[1], [[2], [3]]]


async def test_leaving_a_lane_by_an_exception_waits_for_nothing(router: FakeRouter, mesh: slotmesh.Mesh) -> None:
    router.held = True
    lane = mesh.endpoint("digits").ordered("key")
    pending = lane.add(1)
    with pytest.raises(KeyError):
        async with lane:
            raise KeyError
    assert not pending.done()
    await router.until(lambda: bool(router.waiting))
    router.release()
    assert await pending == [1]


async def test_named_arguments_travel_as_a_map(router: FakeRouter, mesh: slotmesh.Mesh) -> None:
    digits = mesh.endpoint("digits")
    assert await digits.classify(pixels=[1], scale=2) == {"pixels": [1], "scale": 2}
    with pytest.raises(TypeError, match=r"digits\.classify: .* name all of them, or none"):
        digits.classify([1], scale=2)


async def test_every_content_type_comes_back(router: FakeRouter, mesh: slotmesh.Mesh) -> None:
    digits = mesh.endpoint("digits")
    as_bytes = digits.options(content_type=OCTET_STREAM)
    assert await as_bytes.echo(b"\0\1") == b"\0\1"
    assert await as_bytes.echo.map([b"a", b"", b"c"]) == [b"a", b"", b"c"]
    assert await digits.options(content_type=JSON).echo("ü", None) == ["ü", None]
    message = wrappers_pb2.StringValue(value="hello")
    typed = digits.options(content_type=PROTOBUF).echo.returning(wrappers_pb2.StringValue)
    assert await typed(message) == message
    assert await typed.map([message, message]) == [message, message]
    with pytest.raises(TypeError, match=r"digits\.echo: .*exactly one positional argument"):
        as_bytes.echo(b"a", b"b")
    with pytest.raises(TypeError, match=r"returning\(MessageClass\)"):
        digits.options(content_type=PROTOBUF).echo(message)
    sent = [batch.options.content_type for batch in router.batches]
    assert sent == [OCTET_STREAM, OCTET_STREAM, JSON, PROTOBUF, PROTOBUF]


async def test_results_become_the_type_asked_for(router: FakeRouter, mesh: slotmesh.Mesh) -> None:
    router.answer = first_argument
    classify = mesh.endpoint("digits").classify
    typed = classify.returning(Label)
    assert await typed({"digit": 3}) == Label(3)
    assert await typed.map([{"digit": 1}, {"digit": 2}]) == [Label(1), Label(2)]
    assert await typed.unary({"digit": 4}) == Label(4)
    wrong = typed({"digit": "three"})
    fine = typed({"digit": 3})
    with pytest.raises(DecodeError, match=r"digits\.classify .*value\.digit: expected int, got str"):
        await wrong
    assert await fine == Label(3)
    with pytest.raises(DecodeError, match=r"digits\.classify"):
        await typed.unary({"digit": "three"})


async def test_a_map_takes_an_iterable_for_each_argument(router: FakeRouter, mesh: slotmesh.Mesh) -> None:
    add = mesh.endpoint("digits").add
    assert await add.map([1, 2], iter([3, 4])) == [[1, 3], [2, 4]]
    assert await add.map([]) == []
    with pytest.raises(ValueError, match="differ in length"):
        add.map([1, 2], [3])
    assert router.calls() == 2


@pytest.mark.parametrize("value", ["Ada", b"Ada"])
async def test_a_text_in_place_of_items_is_refused(router: FakeRouter, mesh: slotmesh.Mesh, value: str | bytes) -> None:
    with pytest.raises(TypeError, match=r"got one (str|bytes): write \[value\]"):
        mesh.endpoint("digits").add.map(value)
    with pytest.raises(TypeError, match="got one"):
        mesh.endpoint("digits").add.map([1, 2, 3], value)
    assert router.calls() == 0


async def test_a_map_larger_than_the_window_passes_in_order(router: FakeRouter, mesh: slotmesh.Mesh) -> None:
    assert await mesh.endpoint("digits").echo.map(range(5_000)) == [[number] for number in range(5_000)]


async def test_a_single_call_does_not_wait_for_a_whole_map(router: FakeRouter, mesh: slotmesh.Mesh) -> None:
    digits = mesh.endpoint("digits")
    large = digits.echo.map(range(50_000))
    single = digits.other(1)
    await single
    assert not large.done()
    assert len(await large) == 50_000


async def test_results_in_any_order_reach_their_own_calls(router: FakeRouter, mesh: slotmesh.Mesh) -> None:
    router.held = True
    echo = mesh.endpoint("digits").options(content_type=OCTET_STREAM).echo
    single = [echo(b"%d" % number) for number in range(50)]
    together = echo.map([b"%d" % number for number in range(50, 100)])
    await router.until(lambda: router.calls() == 100)
    calls = [
        (stream, *call) for stream, batch in router.waiting for call in zip(batch.ids, batch.payloads, strict=True)
    ]
    for stream, call_id, payload in calls[::2][::-1] + calls[1::2]:
        stream.answer_ids([call_id], [payload])
    assert await asyncio.gather(*single) == [b"%d" % number for number in range(50)]
    assert await together == [b"%d" % number for number in range(50, 100)]


async def test_handler_methods_that_our_names_hide_are_reachable(router: FakeRouter, mesh: slotmesh.Mesh) -> None:
    digits = mesh.endpoint("digits")
    assert digits.method("ordered") is digits.method("ordered")
    assert digits.method("echo") is digits.echo
    assert await digits.method("ordered")(1) == [1]
    lane = digits.ordered("key")
    assert await lane.method("method")(2) == [2]
    assert await digits(3) == [3]
    assert await lane(4) == [4]
    assert [batch.options.method for batch in router.batches] == ["ordered", "method", "", ""]
    for name in ("", "_private"):
        with pytest.raises(ValueError, match="a method needs a name"):
            digits.method(name)
    with pytest.raises(AttributeError):
        _ = digits._private


async def test_options_travel_with_the_calls_of_their_view_only(router: FakeRouter, mesh: slotmesh.Mesh) -> None:
    digits = mesh.endpoint("digits")
    view = digits.options(timeout=60, metadata={"k": "v"}, idempotent=True)
    await asyncio.gather(digits.echo(1), view.echo(2), view.options(timeout=None).echo(3))
    plain, special, third = (batch.options for batch in router.batches)
    assert (plain.HasField("timeout"), dict(plain.metadata), plain.idempotent) == (False, {}, False)
    assert 0 < special.timeout.ToMilliseconds() <= 60_000, "what is left of it"
    assert (dict(special.metadata), special.idempotent) == ({"k": "v"}, True)
    assert (third.HasField("timeout"), dict(third.metadata), third.idempotent) == (False, {"k": "v"}, True)
    with pytest.raises(ValueError, match="timeout must be"):
        digits.options(timeout=-1)


async def test_a_method_has_options_of_its_own(router: FakeRouter, mesh: slotmesh.Mesh) -> None:
    router.answer = first_argument
    digits = mesh.endpoint("digits").options(idempotent=True)
    urgent = digits.classify.returning(Label).options(slo=timedelta(milliseconds=20), shard_key="user-42")
    assert await urgent({"digit": 3}) == Label(3)
    assert await urgent.map([{"digit": 1}, {"digit": 2}]) == [Label(1), Label(2)]
    assert await urgent.unary({"digit": 4}) == Label(4)
    noon = datetime(2026, 1, 2, 12, tzinfo=UTC)
    assert await urgent.options(slo_at=noon)({"digit": 5}) == Label(5)
    assert await digits.classify(6) == 6
    *relative, absolute, plain = (batch.options for batch in router.batches)
    assert [
        (options.method, options.shard_key, options.idempotent, options.relative_slo.ToMilliseconds())
        for options in relative
    ] == [("classify", "user-42", True, 20)] * 2
    assert (absolute.HasField("relative_slo"), absolute.absolute_slo.ToDatetime(tzinfo=UTC)) == (False, noon)
    assert (plain.HasField("relative_slo"), plain.shard_key, plain.idempotent) == (False, "", True)
    with pytest.raises(slotmesh.BadRequest, match="slo must be 0 … "):
        digits.classify.options(slo=-1)
    with pytest.raises(slotmesh.BadRequest, match="both"):
        digits.options(slo=1, slo_at=noon)


async def test_what_is_urgent_does_not_wait_behind_what_is_not(router: FakeRouter, mesh: slotmesh.Mesh) -> None:
    echo = mesh.endpoint("digits").echo
    flood = echo.map(range(50_000))
    assert await echo.options(slo=0.01)(1) == [1]
    assert not flood.done()
    await flood


async def test_a_method_of_a_lane_stays_in_line_whatever_its_options(router: FakeRouter, mesh: slotmesh.Mesh) -> None:
    async with mesh.endpoint("digits").ordered("key") as lane:
        for number in range(0, 100, 2):
            lane.add(number)
            lane.add.options(slo=0)(number + 1)
    arrived = [decode(MSGPACK, payload)[0] for batch in router.batches for payload in batch.payloads]
    assert arrived == list(range(100))
    assert {batch.options.ordering_key for batch in router.batches} == {"key"}


async def test_endpoints_have_a_stream_each_and_views_share_it(router: FakeRouter, mesh: slotmesh.Mesh) -> None:
    a, b = mesh.endpoint("a"), mesh.endpoint("b")
    assert mesh.endpoint("a") is a
    await asyncio.gather(a.echo(1), a.options(timeout=1).echo(1), a.ordered("k").echo(1), b.echo(1))
    assert sorted(stream.endpoint for stream in router.streams) == ["a", "b"]


async def test_a_unary_call(router: FakeRouter, mesh: slotmesh.Mesh) -> None:
    digits = mesh.endpoint("digits")
    assert await digits.echo.unary(1, "a") == [1, "a"]
    assert await digits.options(content_type=OCTET_STREAM, timeout=5).echo.unary(b"x") == b"x"
    assert await digits.options(timeout=3e11).echo.unary(1) == [1], "a deadline that the transport cannot carry"
    assert router.opened == 0
    with pytest.raises(TypeError, match=r"digits\.echo: "):
        await digits.echo.unary(1, x=2)


async def test_a_cancelled_call_disturbs_nobody(router: FakeRouter, mesh: slotmesh.Mesh) -> None:
    router.held = True
    echo = mesh.endpoint("digits").echo
    calls = [echo(number) for number in range(5)]
    await router.until(lambda: router.calls() == 5)
    calls[0].cancel()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(calls[2], 0.001)
    router.release()
    await asyncio.wait(calls)
    assert [call.cancelled() for call in calls] == [True, False, True, False, False]
    assert [await call for call in calls if not call.cancelled()] == [[1], [3], [4]]
    assert await echo("next") == ["next"]


async def test_a_call_that_was_cancelled_before_it_left_never_leaves(router: FakeRouter, mesh: slotmesh.Mesh) -> None:
    echo = mesh.endpoint("digits").echo
    calls = [echo(number) for number in range(4)]
    calls[1].cancel()
    cancelled_map = echo.map([10, 11])
    cancelled_map.cancel()
    assert [await call for call in calls if not call.cancelled()] == [[0], [2], [3]]
    assert await echo("end") == ["end"]
    assert [decode(MSGPACK, payload)[0] for batch in router.batches for payload in batch.payloads] == [0, 2, 3, "end"]


async def test_frames_that_a_client_does_not_know_are_ignored(router: FakeRouter, mesh: slotmesh.Mesh) -> None:
    echo = mesh.endpoint("digits").echo
    assert await echo(1) == [1]
    stream: FakeStream = router.streams[0]
    stream.say(Response(heartbeat=call_pb2.Heartbeat(stamp=1)))
    stream.answer_ids([999, 1], [b"stray", b"again"])
    assert await echo(2) == [2]
    assert router.opened == 1
