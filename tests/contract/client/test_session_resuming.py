"""A session over real gRPC: whatever becomes of streams and routers, each call ends once, with its own outcome."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

import slotmesh
from slotmesh.codec import MSGPACK, OCTET_STREAM, decode
from slotmesh.errors import Executed, Failure, Reason
from slotmesh.runtime.backoff import Backoff
from slotmesh.v1 import router_service_pb2
from tests.contract.client.session_routers import Routers, count_to, failure_of, ids_of
from tests.support.fakes.router import FakeRouter
from tests.support.wait import wait_until

pytestmark = pytest.mark.asyncio


@pytest_asyncio.fixture
async def routers() -> AsyncIterator[Routers]:
    async with FakeRouter() as one, FakeRouter() as two:
        yield one, two
    assert not one.breaches
    assert not two.breaches


@pytest_asyncio.fixture
async def digits(routers: Routers) -> AsyncIterator[slotmesh.Endpoint]:
    async with slotmesh.connect([router.address for router in routers], close_grace=5) as mesh:
        yield mesh.endpoint("digits").options(content_type=OCTET_STREAM)


def unanswered(opening: router_service_pb2.OpenStream) -> list[tuple[int, int]]:
    return [(each.first, each.last) for each in opening.unanswered]


# -- resuming --------------------------------------------------------------------------------------------------------


async def test_what_was_not_answered_is_sent_again_elsewhere_with_its_ids_and_options(
    routers: Routers, digits: slotmesh.Endpoint
) -> None:
    one, two = routers
    one.held = True
    one.window_calls = 6
    lane = digits.options(timeout=9).ordered("key")
    calls = [lane.add(payload) for payload in count_to(4)] + [digits.echo(b"%d" % number) for number in range(4, 8)]
    await one.until(lambda: one.calls() == 6)
    (stream, batch), *_ = one.waiting
    stream.answer_ids([batch.ids[1]], [batch.payloads[1]], OCTET_STREAM)
    await one.until(lambda: one.calls() == 7)
    one.break_streams()
    assert await asyncio.gather(*calls) == count_to(8)
    assert unanswered(two.openings[0]) == [(1, 1), (3, 7)]
    assert ids_of(two) == [[1, 3, 4], [5, 6], [7], [8]]
    assert [each.resend for each in two.batches] == [True, True, True, False]
    assert [each.options for each in two.batches[:2]] == [each.options for each in one.batches[:2]]
    assert two.batches[0].options.ordering_key == "key"
    assert all(each.age_s > 0 for each in two.batches if each.resend)


async def test_a_map_goes_on_elsewhere(routers: Routers, digits: slotmesh.Endpoint) -> None:
    one, _ = routers
    one.cut_after = 700
    assert await digits.echo.map(count_to(5_000)) == count_to(5_000)


async def test_the_next_router_is_asked_without_a_pause(
    routers: Routers, digits: slotmesh.Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = routers
    one.held = True
    call = digits.echo(b"x")
    await one.until(lambda: one.calls() == 1)
    monkeypatch.setattr(Backoff, "next_delay_s", lambda _: 3_600.0)
    one.break_streams()
    async with asyncio.timeout(60):
        assert await call == b"x"
    assert two.openings[0].epoch == 2


async def test_routers_that_others_name_are_used(routers: Routers) -> None:
    one, two = routers
    one.alternates = ["not an address", two.address]
    async with slotmesh.connect(one.address) as mesh:
        echo = mesh.endpoint("digits").echo
        assert await echo(1) == [1]
        one.held = True
        call = echo(2)
        await one.until(lambda: one.calls() == 2)
        await one.stop()
        assert await call == [2]
        assert two.opened == 1


async def test_what_is_sent_again_keeps_to_the_new_window(routers: Routers, digits: slotmesh.Endpoint) -> None:
    one, two = routers
    one.held = two.held = True
    two.window_calls = 3
    calls = [digits.echo(payload) for payload in count_to(20)]
    await one.until(lambda: one.calls() == 20)
    one.break_streams()
    await two.until(lambda: two.calls() == 3)
    new = digits.echo(b"new")
    two.release()
    assert await asyncio.gather(*calls, new) == [*count_to(20), b"new"]
    assert [call_id for ids in ids_of(two) for call_id in ids] == list(range(1, 22))


async def test_what_is_sent_again_is_cut_into_frames(routers: Routers, digits: slotmesh.Endpoint) -> None:
    one, two = routers
    one.held = True
    large = b"x" * 250_000
    calls = [digits.echo(large) for _ in range(12)]
    await one.until(lambda: one.calls() == 12)
    one.break_streams()
    assert await asyncio.gather(*calls) == [large] * 12
    assert [(batch.frame, len(batch.ids)) for batch in two.batches] == [(1, 4), (2, 4), (3, 4)]


async def test_a_fenced_stream_is_a_broken_stream(routers: Routers, digits: slotmesh.Endpoint) -> None:
    one, two = routers
    one.held = True
    call = digits.echo(b"x")
    await one.until(lambda: one.calls() == 1)
    two.refusal = Failure(reason=Reason.SESSION_FENCED, message="a newer connection has the session")
    one.fence()
    await two.until(lambda: two.refused > 0)
    one.held = False
    two.refusal = None
    assert await call == b"x"
    epochs = [opening.epoch for opening in (*one.openings, *two.openings)]
    assert sorted(epochs) == list(range(1, len(epochs) + 1))


async def test_a_rejection_of_what_was_sent_before_does_not_say_that_it_was_not_executed(
    routers: Routers, digits: slotmesh.Endpoint
) -> None:
    one, two = routers
    one.held = two.held = True
    sent = digits.echo(b"x")
    await one.until(lambda: one.calls() == 1)
    one.break_streams()
    await two.until(lambda: two.calls() == 1)
    new = digits.echo(b"y")
    await two.until(lambda: two.calls() == 2)
    for stream, batch in two.waiting:
        stream.reject(batch, Failure(reason=Reason.WINDOW_EXCEEDED, message="too many"))
    assert (await failure_of(sent)).executed is Executed.UNKNOWN
    assert (await failure_of(new)).executed is Executed.NO


async def test_without_any_router_what_was_sent_is_unknown_and_the_rest_was_not_executed() -> None:
    async with FakeRouter(window_calls=2) as router:
        router.held = True
        async with slotmesh.connect(router.address, connect_timeout=0.3) as mesh:
            calls = [mesh.endpoint("digits").echo(number) for number in range(3)]
            await router.until(lambda: router.calls() == 2)
            await router.stop()
            errors = [await failure_of(call) for call in calls]
    assert [type(error) for error in errors] == [slotmesh.RouterLost] * 3
    assert [error.executed for error in errors] == [Executed.UNKNOWN, Executed.UNKNOWN, Executed.NO]
    assert [error.call_id for error in errors] == [1, 2, 0]


async def test_a_stream_that_never_lives_does_not_keep_calls_for_ever(routers: Routers) -> None:
    one, two = routers
    one.cut_after = two.cut_after = 0  # each stream breaks with the first call, before it is answered
    async with slotmesh.connect([one.address, two.address], connect_timeout=1.0) as mesh:
        error = await failure_of(mesh.endpoint("digits").echo(1))
        assert (type(error), error.executed) == (slotmesh.RouterLost, Executed.UNKNOWN)
    assert 2 < one.opened + two.opened < 100


# -- leaving routers -------------------------------------------------------------------------------------------------


async def test_a_router_that_leaves_is_followed_by_another_one(routers: Routers) -> None:
    one, two = routers
    async with slotmesh.connect(one.address) as mesh:
        one.held = True
        echo = mesh.endpoint("digits").echo
        before = echo(1)
        await one.until(lambda: one.calls() == 1)
        one.go_away(two.address)
        after = echo(2)
        assert (await before, await after) == ([1], [2])
        assert ids_of(two) == [[1], [2]]
        assert two.openings[0].epoch == 2
        await one.until(lambda: not one.streams)


async def test_a_router_that_leaves_goes_on_answering_until_another_one_is_reached(
    routers: Routers, digits: slotmesh.Endpoint
) -> None:
    one, two = routers
    await two.stop()
    one.held = True
    before = digits.echo(b"1")
    await one.until(lambda: one.calls() == 1)
    one.go_away()
    one.release()
    assert await before == b"1"
    assert one.opened == 1


async def test_routers_that_all_leave_are_not_asked_without_a_pause(routers: Routers) -> None:
    one, two = routers
    one.leaving = two.leaving = True
    async with slotmesh.connect([one.address, two.address], connect_timeout=0.5) as mesh:
        one.held = two.held = True
        error = await failure_of(mesh.endpoint("digits").echo(1))
        assert type(error) is slotmesh.RouterLost
    assert 2 < one.opened + two.opened < 100


# -- all of it, in any order -----------------------------------------------------------------------------------------


def disturb(router: FakeRouter, chance: random.Random) -> None:
    """Something happens to a router, or it recovers."""
    router.cut_after = None
    if router.held:
        router.release()
    match chance.randrange(8):
        case 0:
            router.break_streams()
        case 1:
            router.fence()
        case 2:
            router.go_away()
        case 3:
            router.cut_after = chance.randrange(10)
        case 4:
            router.held = True
        case _:
            pass


@pytest.mark.parametrize("seed", range(6))
async def test_whatever_breaks_each_call_ends_once_and_lanes_stay_in_order(routers: Routers, seed: int) -> None:
    chance = random.Random(seed)
    for router in routers:
        router.window_calls = chance.choice([3, 50, 1_024])
    async with slotmesh.connect([router.address for router in routers]) as mesh:
        digits = mesh.endpoint("digits")
        lanes = [digits.ordered(f"key-{number}") for number in range(4)]
        made: list[asyncio.Future[Any]] = []
        for _ in range(40):
            for _ in range(chance.randrange(1, 20)):
                made.append(chance.choice([*lanes, digits]).add(len(made)))
            for router in routers:
                disturb(router, chance)
            awaited = chance.choice(made)
            await wait_until(lambda call=awaited: call.done() or not all(each.answers for each in routers))  # type: ignore[misc]  # bound
        for router in routers:
            router.cut_after = None
            router.release()
        results = await asyncio.gather(*made)
    assert results == [[number] for number in range(len(made))]
    assert sum(router.opened for router in routers) > 2
    number_of: dict[int, int] = {}
    lane_of: dict[int, str] = {}
    for batch in (batch for router in routers for batch in router.batches):
        for call_id, payload in zip(batch.ids, batch.payloads, strict=True):
            number = decode(MSGPACK, payload)[0]
            assert number_of.setdefault(call_id, number) == number, "an id means one call for ever"
            lane_of[call_id] = batch.options.ordering_key
    assert sorted(number_of.values()) == list(range(len(made)))
    for key in {key for key in lane_of.values() if key}:
        numbers = [number_of[call_id] for call_id in sorted(number_of) if lane_of[call_id] == key]
        assert numbers == sorted(numbers)
