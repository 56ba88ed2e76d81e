"""Calls whose deadline passes while their router is silent: their futures fail in time all the same."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

import slotmesh
from slotmesh.client.stream.abandoned_calls import OVERDUE_LOOK_INTERVAL_S, SLACK_S
from slotmesh.codec import OCTET_STREAM
from slotmesh.errors import Executed, Reason
from tests.support.fakes.router import FakeRouter

pytestmark = pytest.mark.asyncio

TIMEOUT_S = 0.05


@pytest_asyncio.fixture
async def router() -> AsyncIterator[FakeRouter]:
    async with FakeRouter() as router:
        yield router
    assert not router.breaches


@pytest_asyncio.fixture
async def digits(router: FakeRouter) -> AsyncIterator[slotmesh.Endpoint]:
    async with slotmesh.connect(router.address, close_grace=0.1) as mesh:
        yield mesh.endpoint("digits").options(content_type=OCTET_STREAM)


def assert_overdue(error: object) -> None:
    assert isinstance(error, slotmesh.SlotmeshError)
    assert (error.reason, error.executed) == (Reason.DEADLINE_RUNNING, Executed.UNKNOWN)


async def end_of(future: asyncio.Future[Any]) -> BaseException | None:
    await asyncio.wait([future])
    return future.exception()


async def test_a_router_that_says_nothing_does_not_outlast_a_deadline(
    router: FakeRouter, digits: slotmesh.Endpoint
) -> None:
    router.held = True
    hasty = digits.options(timeout=TIMEOUT_S)
    began = time.monotonic()
    single, whole = hasty.echo(b"1"), hasty.echo.map([b"2", b"3"])
    parts = hasty.echo.map([b"4", b"5"], return_exceptions=True)
    patient = digits.options(timeout=60).echo(b"6")
    assert_overdue(await end_of(single))
    assert_overdue(await end_of(whole))
    for error in await parts:
        assert_overdue(error)
    assert time.monotonic() - began >= TIMEOUT_S + SLACK_S, "the router has the first word"
    assert not patient.done()
    patient.cancel()
    await router.until(lambda: bool(router.cancels))
    assert [len(each) for cancel in router.cancels for each in cancel] == [1], (
        "of the others the router knows the deadline itself"
    )


async def test_what_comes_after_all_reaches_nobody(router: FakeRouter, digits: slotmesh.Endpoint) -> None:
    router.held, router.window_calls = True, 3
    hasty = digits.options(timeout=TIMEOUT_S)
    late = [hasty.echo(b"1"), hasty.echo(b"2")]
    mapped = hasty.echo.map([b"3"], return_exceptions=True)
    for call in late:
        assert_overdue(await end_of(call))
    assert_overdue((await mapped)[0])
    behind = digits.echo(b"4")
    await router.until(lambda: router.calls() == 3)
    assert not behind.done(), "calls without an outcome count in the window, whoever waits"
    router.release()
    assert await behind == b"4"
    assert_overdue(late[0].exception())


async def test_what_is_overdue_among_calls_that_were_answered(router: FakeRouter, digits: slotmesh.Endpoint) -> None:
    router.held = True
    hasty = digits.options(timeout=TIMEOUT_S)
    calls = [hasty.echo(payload) for payload in (b"1", b"2", b"3")]
    await router.until(lambda: router.calls() == 3)
    ((stream, _),) = router.waiting
    stream.answer_ids([2], [b"2"], OCTET_STREAM)
    assert await calls[1] == b"2"
    for call in (calls[0], calls[2]):
        assert_overdue(await end_of(call))
    router.release()
    assert await digits.echo(b"4") == b"4"


async def test_what_is_overdue_is_not_sent_again() -> None:
    async with FakeRouter() as one, FakeRouter() as two, slotmesh.connect([one.address, two.address]) as mesh:
        digits = mesh.endpoint("digits").options(content_type=OCTET_STREAM)
        one.held = True
        hasty, patient = digits.options(timeout=TIMEOUT_S).echo(b"1"), digits.echo(b"2")
        assert_overdue(await end_of(hasty))
        one.break_streams()
        assert await patient == b"2"
        assert [list(batch.ids) for batch in two.batches] == [[2]]


# -- calls that cannot be sent ---------------------------------------------------------------------------------------


def assert_never_sent(error: object) -> None:
    assert isinstance(error, slotmesh.SlotmeshError)
    assert (error.reason, error.executed) == (Reason.DEADLINE_IN_QUEUE, Executed.NO)


async def test_where_no_router_is_a_timeout_is_kept() -> None:
    async with FakeRouter() as gone:
        address = gone.address
    async with slotmesh.connect(address, connect_timeout=20, close_grace=0.1) as mesh:
        digits = mesh.endpoint("digits").options(content_type=OCTET_STREAM)
        hasty = digits.options(timeout=TIMEOUT_S)
        patient = digits.echo(b"3")
        calls = [hasty.echo(b"1"), hasty.ordered("key").echo(b"2")]
        mapped = await hasty.echo.map([b"4", b"5"], return_exceptions=True)
        for error in (*mapped, *[await end_of(call) for call in calls]):
            assert_never_sent(error)
        assert not patient.done()
        patient.cancel()


async def test_behind_a_full_window_a_timeout_is_kept(router: FakeRouter, digits: slotmesh.Endpoint) -> None:
    router.held, router.window_calls = True, 1
    first = digits.echo(b"1")
    await router.until(lambda: router.calls() == 1)
    assert_never_sent(await end_of(digits.options(timeout=TIMEOUT_S).echo(b"2")))
    router.release()
    assert await first == b"1"
    assert await digits.echo(b"3") == b"3"
    assert [batch.payloads for batch in router.batches] == [[b"1"], [b"3"]]


@pytest.mark.parametrize("keys", [[""], ["a"], ["a", "b"]])
async def test_time_spent_waiting_is_not_given_again(
    router: FakeRouter, digits: slotmesh.Endpoint, keys: list[str]
) -> None:
    router.held, router.window_calls = True, 1
    first = digits.echo(b"1")
    await router.until(lambda: router.calls() == 1)
    slower = digits.options(timeout=60)
    late = [(slower.ordered(key) if key else slower).echo(key.encode()) for key in keys]
    assert_never_sent(await end_of(digits.options(timeout=TIMEOUT_S).echo(b"0")))  # two looks have gone by
    router.set_window(8, 1000)
    router.release()
    assert await asyncio.gather(first, *late) == [b"1", *[key.encode() for key in keys]]
    timeouts_s = [batch.options.timeout.ToNanoseconds() / 1e9 for batch in router.batches[1:]]
    assert all(0 < timeout_s <= 60 - OVERDUE_LOOK_INTERVAL_S / 2 for timeout_s in timeouts_s), timeouts_s


async def test_in_a_lane_that_stops_nobody_but_the_replica_says_that_a_call_has_failed(
    router: FakeRouter, digits: slotmesh.Endpoint
) -> None:
    router.held = True
    hasty = digits.options(timeout=TIMEOUT_S)
    lane = hasty.ordered("k", after_failure="stop")
    first, later = lane.echo(b"1"), lane.echo(b"2")
    assert_overdue(await end_of(hasty.echo(b"3")))
    assert not first.done(), "it may have ended well, and then the later one runs"
    router.release()
    assert (await first, await later) == (b"1", b"2")
