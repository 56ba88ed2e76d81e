"""Calls that are made faster than the mesh takes them: the client holds a bounded number, in shares."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import AsyncIterator, Iterator
from itertools import count, islice
from typing import Any, Final

import pytest
import pytest_asyncio

import slotmesh
from slotmesh.codec import MSGPACK, OCTET_STREAM
from slotmesh.errors import Executed, Reason
from tests.support.fakes.router import FakeRouter

pytestmark = pytest.mark.asyncio
BOUND: Final = 64
WINDOW: Final = 8
WITHIN_S: Final = 10.0


@pytest_asyncio.fixture
async def router() -> AsyncIterator[FakeRouter]:
    """Answers nothing before it is released: then as many calls leave as its window has."""
    async with FakeRouter(window_calls=WINDOW) as router:
        router.held = True
        yield router
        router.release()
    assert not router.breaches


@pytest_asyncio.fixture
async def mesh(router: FakeRouter) -> AsyncIterator[slotmesh.Mesh]:
    async with slotmesh.connect(
        router.address, close_grace=WITHIN_S, max_buffered_calls=BOUND, max_buffered_bytes=100_000
    ) as mesh:
        yield mesh
        router.release()


def endpoint_of(mesh: slotmesh.Mesh, name: str = "digits") -> slotmesh.Endpoint:
    return mesh.endpoint(name).options(content_type=OCTET_STREAM)


async def made(endpoint: slotmesh.Endpoint, calls: int, payload: bytes = b"x") -> list[asyncio.Future[bytes]]:
    """Calls that are made before any of them can leave; those of the window leave then."""
    futures = [endpoint.echo(payload) for _ in range(calls)]
    await asyncio.sleep(0)
    return futures


def refused(futures: list[Any]) -> list[Any]:
    """The failures of those that were refused; the others have no outcome yet."""
    return [future.exception() for future in futures if future.done()]


async def results_of(futures: list[asyncio.Future[bytes]]) -> list[Any]:
    async with asyncio.timeout(WITHIN_S):
        return await asyncio.gather(*futures, return_exceptions=True)


# -- calls -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("payload", "calls"), [(b"x", BOUND), (b"x" * 10_000, 10)])
async def test_a_call_past_the_bound_fails_and_says_what_to_do(
    router: FakeRouter, mesh: slotmesh.Mesh, payload: bytes, calls: int
) -> None:
    futures = await made(endpoint_of(mesh), calls + 2, payload)
    failures = refused(futures)
    assert [future.done() for future in futures] == [False] * calls + [True] * 2
    for failure in failures:
        assert isinstance(failure, slotmesh.ClientBufferFull)
        assert (failure.reason, failure.executed) == (Reason.CLIENT_BUFFER_FULL, Executed.NO)
        assert isinstance(failure, slotmesh.ResourceExhausted)
        assert failure.endpoint == "digits"
        for word in ("max_buffered_calls", "max_buffered_bytes", "send", str(calls)):
            assert word in str(failure)
    router.release()
    assert await results_of(futures[:calls]) == [payload] * calls
    assert router.calls() == calls, "what was refused was not sent"
    assert await endpoint_of(mesh).echo(b"again") == b"again"


async def test_one_call_of_any_size_is_allowed_where_nothing_waits(mesh: slotmesh.Mesh, router: FakeRouter) -> None:
    router.release()
    assert await endpoint_of(mesh).echo(b"x" * 300_000) == b"x" * 300_000


async def test_of_many_refused_calls_that_nobody_awaits_one_is_reported(
    mesh: slotmesh.Mesh, caplog: pytest.LogCaptureFixture
) -> None:
    endpoint = endpoint_of(mesh)
    kept = [endpoint.echo(b"x") for _ in range(BOUND)]
    for _ in range(100):
        endpoint.echo(b"x")
    gc.collect()
    assert len([each for each in caplog.records if each.levelno >= logging.ERROR]) == 1
    for future in kept:
        future.cancel()


@pytest.mark.parametrize("kind", ["endpoint", "tenant"])
async def test_others_have_room_while_one_floods(mesh: slotmesh.Mesh, router: FakeRouter, kind: str) -> None:
    flooding = endpoint_of(mesh).options(tenant="ada")
    flood = await made(flooding, 2 * BOUND)
    assert len(refused(flood)) == BOUND
    other = endpoint_of(mesh, "words") if kind == "endpoint" else flooding.options(tenant="bob")
    beside = await made(other, 4)
    assert not refused(beside)
    router.release()
    assert await results_of(beside) == [b"x"] * 4
    assert await results_of(flood[:BOUND]) == [b"x"] * BOUND


async def test_calls_that_were_taken_back_leave_room(mesh: slotmesh.Mesh, router: FakeRouter) -> None:
    endpoint = endpoint_of(mesh)
    futures = await made(endpoint, BOUND)
    await router.until(lambda: router.calls() == WINDOW)
    for future in futures[WINDOW:]:
        future.cancel()
    router.release()
    assert await results_of(futures[:WINDOW]) == [b"x"] * WINDOW
    again = [endpoint.echo(b"y") for _ in range(BOUND)]
    assert await results_of(again) == [b"y"] * BOUND


async def test_values_of_a_refused_call_end_in_its_failure(mesh: slotmesh.Mesh) -> None:
    endpoint = endpoint_of(mesh)
    kept = await made(endpoint, BOUND)
    with pytest.raises(slotmesh.ClientBufferFull):
        await anext(endpoint.echo.stream(b"x"))
    for future in kept:
        future.cancel()


@pytest.mark.parametrize("lane", [False, True])
async def test_a_call_that_is_sent_waits_for_room(mesh: slotmesh.Mesh, router: FakeRouter, lane: bool) -> None:
    endpoint = endpoint_of(mesh)
    calls = endpoint.ordered("key") if lane else endpoint
    futures = await made(calls, BOUND, b"0")  # type: ignore[arg-type]  # a lane has the same methods
    await router.until(lambda: router.calls() == WINDOW)
    futures += [calls.echo(b"0") for _ in range(WINDOW)]
    sending = [asyncio.create_task(calls.echo.send(b"%d" % number)) for number in range(1, 2 * BOUND)]
    await asyncio.sleep(0)
    assert not any(task.done() for task in sending)
    sending[10].cancel()
    router.release()
    async with asyncio.timeout(WITHIN_S):
        sent = [await task for task in sending if task is not sending[10]]
    wanted = [b"%d" % number for number in range(1, 2 * BOUND) if number != 11]
    assert await results_of(sent) == wanted
    arrived = [payload for batch in router.batches for payload in batch.payloads]
    assert arrived == [b"0"] * (BOUND + WINDOW) + wanted, "in the order in which they were made"


# -- maps --------------------------------------------------------------------------------------------------------------


class Drawn:
    """Items, and how many were read."""

    def __init__(self, items: Iterator[Any]) -> None:
        self.items = items
        self.number = 0

    def __iter__(self) -> Iterator[Any]:
        for item in self.items:
            self.number += 1
            yield item


@pytest.mark.parametrize("kind", ["list", "generator"])
async def test_a_map_has_more_items_than_the_client_holds(mesh: slotmesh.Mesh, router: FakeRouter, kind: str) -> None:
    router.release()
    items = [b"%d" % number for number in range(40 * BOUND)]
    results = await endpoint_of(mesh).echo.map(items if kind == "list" else iter(items))
    assert results == items
    assert endpoint_of(mesh).echo._stream.share_of(endpoint_of(mesh).echo._spec).calls == 0


async def test_a_map_without_end_is_read_as_its_calls_find_room(mesh: slotmesh.Mesh, router: FakeRouter) -> None:
    drawn = Drawn(b"%d" % number for number in count())
    future = endpoint_of(mesh).echo.map(drawn)
    await router.until(lambda: router.calls() == WINDOW)
    await asyncio.sleep(0)
    read = drawn.number
    assert read < 20 * BOUND
    router.release()
    await router.until(lambda: router.calls() > 10 * read)
    router.held = True
    future.cancel()
    await asyncio.sleep(0)
    read = drawn.number
    router.release()
    assert await endpoint_of(mesh).echo(b"after") == b"after"
    assert drawn.number == read, "a map that was cancelled is read no further"


async def test_calls_of_a_lane_do_not_overtake_its_map(mesh: slotmesh.Mesh, router: FakeRouter) -> None:
    lane = endpoint_of(mesh).ordered("key")
    items = [b"%d" % number for number in range(4 * BOUND)]
    first, second = lane.echo.map(items), lane.echo.map([b"second"])
    with pytest.raises(slotmesh.ClientBufferFull):
        await lane.echo(b"overtakes")
    behind = asyncio.create_task(lane.echo.send(b"behind"))
    await asyncio.sleep(0)
    router.release()
    async with asyncio.timeout(WITHIN_S):
        assert await first == items
        assert await second == [b"second"]
        assert await (await behind) == b"behind"
    assert [payload for batch in router.batches for payload in batch.payloads] == [*items, b"second", b"behind"]


async def test_a_large_call_that_stops_waiting_leaves_the_room_to_others(
    mesh: slotmesh.Mesh, router: FakeRouter
) -> None:
    endpoint = endpoint_of(mesh)
    futures = await made(endpoint, 2 * WINDOW)
    sending = asyncio.create_task(endpoint.echo.send(b"x" * 200_000))
    await asyncio.sleep(0)
    behind = asyncio.create_task(endpoint.echo.send(b"x"))
    await asyncio.sleep(0)
    assert not behind.done(), "places are given in order"
    sending.cancel()
    futures.append(await asyncio.wait_for(behind, WITHIN_S))
    futures.append(endpoint.echo(b"x"))
    assert not refused(futures)
    router.release()
    assert await results_of(futures) == [b"x"] * len(futures)


@pytest.mark.parametrize("before", [1, 12, 30])
async def test_calls_of_a_lane_do_not_join_those_before_its_map(
    mesh: slotmesh.Mesh, router: FakeRouter, before: int
) -> None:
    """The lane has calls that wait, and room for more, but not for the map."""
    lane = endpoint_of(mesh).ordered("key")
    futures = [lane.echo(b"0") for _ in range(before)]
    mapped = lane.echo.map([b"1"] * (4 * BOUND))
    behind: list[Any] = [lane.echo(b"2"), asyncio.create_task(lane.echo.send(b"2"))]
    await asyncio.sleep(0)
    behind.append(lane.echo(b"2"))
    router.release()
    await results_of(futures)
    assert len(await mapped) == 4 * BOUND
    await results_of(behind)
    sent = [payload for batch in router.batches for payload in batch.payloads]
    assert sent == sorted(sent)


@pytest.mark.parametrize("keeps", [False, True])
async def test_an_item_that_cannot_be_carried_fails_a_long_map_after_its_calls(
    mesh: slotmesh.Mesh, router: FakeRouter, keeps: bool
) -> None:
    router.release()
    bad = 20 * BOUND
    items = (object() if number == bad else number for number in count())
    with pytest.raises(TypeError, match=r"digits\.echo"):
        await mesh.endpoint("digits").echo.map(items, return_exceptions=keeps)
    assert 0 < router.calls() <= bad
    with pytest.raises(ValueError, match="differ in length"):
        await mesh.endpoint("digits").add.map(range(bad), range(bad + 1))


async def test_what_fits_is_refused_before_a_call_is_made(mesh: slotmesh.Mesh, router: FakeRouter) -> None:
    with pytest.raises(TypeError):
        mesh.endpoint("digits").echo.map([1, object()])
    with pytest.raises(ValueError, match="differ in length"):
        mesh.endpoint("digits").add.map(range(10), range(11))
    assert not router.opened


async def test_leaving_the_client_waits_for_a_long_map(router: FakeRouter) -> None:
    router.release()
    async with slotmesh.connect(router.address, max_buffered_calls=BOUND) as mesh:
        future = endpoint_of(mesh).echo.map([b"x"] * 20 * BOUND)
    assert future.result() == [b"x"] * 20 * BOUND


async def test_closing_without_grace_fails_the_rest_of_a_map(router: FakeRouter) -> None:
    mesh = slotmesh.connect(router.address, max_buffered_calls=BOUND)
    endpoint = endpoint_of(mesh)
    future = endpoint.echo.map([b"x"] * 20 * BOUND)
    sending = asyncio.create_task(endpoint.echo.send(b"x"))
    await router.until(lambda: router.calls() == WINDOW)
    async with asyncio.timeout(WITHIN_S):
        await mesh.aclose(0)
        with pytest.raises(slotmesh.CallCancelled):
            await future
        with pytest.raises((RuntimeError, slotmesh.CallCancelled)):
            await (await sending)


# -- options -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("connect", [slotmesh.connect, slotmesh.connect_sync])
@pytest.mark.parametrize("name", ["max_buffered_calls", "max_buffered_bytes"])
@pytest.mark.parametrize("value", [0, -1, 1.5, True, "1"])
async def test_a_bound_is_a_number(connect: Any, name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"{name} must be a whole number"):
        connect("127.0.0.1:1", **{name: value})


async def test_calls_that_nobody_awaits_are_bounded_by_default() -> None:
    """No router is there: nothing leaves."""
    async with slotmesh.connect("127.0.0.1:1", close_grace=0) as mesh:
        endpoint = mesh.endpoint("digits").options(content_type=MSGPACK)
        kept = [endpoint.echo(b"x") for _ in range(70_000)]
        assert len(refused(kept)) == 70_000 - 65_536
        for future in islice(kept, 65_536):
            future.cancel()
