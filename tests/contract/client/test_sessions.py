"""A session over real gRPC: identity, signs of life, acknowledgements, calls without a reply."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from functools import partial

import pytest
import pytest_asyncio

import slotmesh
from slotmesh.client.stream import heartbeats as pulse
from slotmesh.codec import OCTET_STREAM
from slotmesh.errors import Executed, Failure, Reason
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


# -- opening ---------------------------------------------------------------------------------------------------------


async def test_a_session_has_an_identity_and_counts_its_connections(
    routers: Routers, digits: slotmesh.Endpoint
) -> None:
    one, two = routers
    assert await digits.echo(b"1") == b"1"
    one.break_streams()
    await one.until(lambda: not one.streams)
    assert await digits.echo(b"2") == b"2"
    two.break_streams()
    await two.until(lambda: not two.streams)
    assert await digits.echo(b"3") == b"3"
    openings = [*one.openings, *two.openings]
    assert len({opening.session_id for opening in openings}) == 1
    assert len(bytes.fromhex(openings[0].session_id)) == 16
    assert sorted(opening.epoch for opening in openings) == [1, 2, 3]


async def test_endpoints_have_sessions_of_their_own(routers: Routers) -> None:
    one, _ = routers
    async with slotmesh.connect(f"{routers[0].address},{routers[1].address}") as mesh:
        await asyncio.gather(mesh.endpoint("a").echo(1), mesh.endpoint("b").echo(1))
    assert len({opening.session_id for opening in one.openings}) == 2


@pytest.mark.parametrize("addresses", ["", " , ", "localhost:1,,localhost:2", [], ["localhost:1", "nonsense"]])
async def test_addresses_that_are_none_are_refused_at_once(addresses: str | Sequence[str]) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  # the address's own parser words it
        slotmesh.connect(addresses)


# -- signs of life ---------------------------------------------------------------------------------------------------


async def test_a_router_that_falls_silent_is_left_after_its_silence(
    routers: Routers, digits: slotmesh.Endpoint
) -> None:
    """How soon, on virtual time: tests/unit/client/test_heartbeats.py."""
    one, two = routers
    one.held = True
    call = digits.echo(b"x")
    await one.until(lambda: one.heartbeats >= 2)
    assert two.opened == 0
    one.mute = True
    loop = asyncio.get_running_loop()
    began = loop.time()
    async with asyncio.timeout(60):
        assert await call == b"x"
    assert loop.time() - began > 2.5, "it was heard for the last time half a second before"
    assert two.openings[0].epoch == 2


async def test_a_quiet_router_with_a_heart_is_left_alone(
    routers: Routers, digits: slotmesh.Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pulse, "BEAT_S", 0.01)
    one, two = routers
    one.held = True
    call = digits.echo(b"x")
    await one.until(lambda: one.heartbeats > 3 * pulse.SILENT_BEATS)
    one.release()
    assert await call == b"x"
    assert (one.opened, two.opened) == (1, 0)


async def test_an_idle_session_rests_where_its_router_allows_it_and_finds_the_router_dead_with_its_first_call(
    routers: Routers, digits: slotmesh.Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pulse, "BEAT_S", 0.2)
    one, two = routers
    one.idle_heartbeat_s = 100.0
    assert await digits.echo(b"1") == b"1"
    at_rest = await settled_heartbeats(one)
    assert at_rest <= 2 * pulse.IDLE_BEATS
    one.mute = True
    async with asyncio.timeout(30):
        assert await digits.echo(b"2") == b"2"
    assert one.heartbeats > at_rest, "the call ends the rest"
    assert (one.opened, two.opened) == (1, 1)


def has_more_heartbeats(router: FakeRouter, than: int) -> bool:
    return router.heartbeats > than


async def settled_heartbeats(router: FakeRouter) -> int:
    """Their number when none has come for a while."""
    before = -1
    while before != router.heartbeats:
        before = router.heartbeats
        with suppress(TimeoutError):
            await router.until(partial(has_more_heartbeats, router, before), within_s=1.5)
    return before


async def test_an_idle_session_beats_each_second_at_a_router_that_does_not_allow_rests(
    routers: Routers, digits: slotmesh.Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pulse, "BEAT_S", 0.1)
    one, _ = routers
    assert await digits.echo(b"1") == b"1"
    await one.until(lambda: one.heartbeats >= 3 * pulse.IDLE_BEATS)


async def test_acks_follow_the_results_and_come_before_the_end(routers: Routers) -> None:
    one, _ = routers
    async with slotmesh.connect(one.address) as mesh:
        echo = mesh.endpoint("digits").echo
        for number in range(5):
            assert await echo(number) == [number]
        await wait_until(lambda: bool(one.acks) and one.acks[-1] == 5, what="acks of all frames")
        assert len(one.acks) <= 3, "acks gather"
        assert await echo(5) == [5]
    await one.until(lambda: not one.streams)
    assert one.acks[-1] == 6
    async with slotmesh.connect(one.address) as mesh:
        assert await mesh.endpoint("digits").echo(6) == [6]
        acks = len(one.acks)
        await one.until(lambda: len(one.acks) > acks)
    await one.until(lambda: not one.streams)
    assert len(one.acks) == acks + 1, "what is acknowledged is not acknowledged again"


async def test_a_mesh_that_is_left_takes_back_what_its_session_has_not_been_answered(routers: Routers) -> None:
    one, _ = routers
    one.held = one.deaf_to_cancels = True
    mesh = slotmesh.connect(one.address, close_grace=0.05)
    calls = [mesh.endpoint("digits").echo(number) for number in range(3)]
    await one.until(lambda: one.calls() == 3)
    calls[1].cancel()
    await one.until(lambda: bool(one.cancels))
    await mesh.aclose()
    assert one.cancels == [[range(2, 3)], [range(1, 2), range(3, 4)]]
    for call in (calls[0], calls[2]):
        assert isinstance(call.exception(), slotmesh.CallCancelled)


# -- no reply --------------------------------------------------------------------------------------------------------


async def test_calls_without_a_reply_end_with_none(routers: Routers, digits: slotmesh.Endpoint) -> None:
    one, _ = routers
    quiet = digits.options(reply=False)
    calls = [quiet.add(payload) for payload in count_to(3)]
    assert await asyncio.gather(*calls) == [None] * 3
    assert await quiet.add.map(count_to(5)) == [None] * 5
    assert await digits.add.options(reply=False)(b"x") is None
    assert await quiet.add.unary(b"x") is None
    assert await digits.add(b"x") == b"x"
    assert [batch.options.stream.no_reply for batch in one.batches] == [True, True, True, False]


async def test_calls_without_a_reply_outlive_their_router(routers: Routers, digits: slotmesh.Endpoint) -> None:
    one, two = routers
    one.cut_after = 2
    assert await digits.options(reply=False).add.map(count_to(5)) == [None] * 5
    assert ids_of(two) == [[3, 4, 5]]


async def test_an_end_without_a_result_fails_calls_that_have_one(routers: Routers, digits: slotmesh.Endpoint) -> None:
    one, _ = routers
    one.held = True
    calls = [digits.echo(payload) for payload in count_to(4)]
    await one.until(lambda: one.calls() == 4)
    (stream, batch), *_ = one.waiting
    one.waiting.clear()
    one.held = False
    stream.end_ids([-(2**60), *batch.ids[1:3], 2**60])
    stream.outgoing.clear()
    frame = router_service_pb2.StreamCallsResponse()
    frame.results.done.add(first=2, last=2**53)
    frame.results.done.add(first=7, last=2)
    stream.say(frame)
    for ended in await asyncio.gather(*calls[1:], return_exceptions=True):
        assert isinstance(ended, slotmesh.InternalError)
        assert ended.executed is slotmesh.Executed.YES
    stream.answer_ids([1], [b"0"], OCTET_STREAM)
    assert await calls[0] == b"0"


async def test_failures_of_calls_without_a_reply_that_did_not_get_there_are_told(
    routers: Routers, digits: slotmesh.Endpoint
) -> None:
    one, _ = routers
    one.held = True
    call = digits.options(reply=False).add(b"x")
    await one.until(lambda: one.calls() == 1)
    (stream, batch), *_ = one.waiting
    stream.reject(batch, Failure(reason=Reason.QUEUE_FULL, message="full"))
    assert isinstance(await failure_of(call), slotmesh.QueueFull)


# -- every failure says it all ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("reason", list(Reason))
async def test_every_failure_says_what_of_which_call(reason: Reason) -> None:
    failure = Failure(reason=reason, message="why", executed=Executed.YES, metadata={"replica_id": "digits-v1-0"})
    async with FakeRouter() as router, slotmesh.connect(router.address) as mesh:
        router.answer = lambda batch: [failure] * len(batch.payloads)
        echo = mesh.endpoint("digits").echo
        streamed, (mapped,) = await failure_of(echo(1)), await echo.map([1], return_exceptions=True)
        for error, call_id in ((streamed, 1), (mapped, 2)):
            assert isinstance(error, slotmesh.SlotmeshError)
            assert str(error) == f"{error.status}/{reason.value}: why"
            assert (error.reason, error.executed, error.replica_id) == (reason, Executed.YES, "digits-v1-0")
            assert (error.endpoint, error.method, error.call_id) == ("digits", "echo", call_id)
