"""Iterating over the values of handlers that yield, without asyncio, over real gRPC."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

import slotmesh
from slotmesh.client.calls.values import TAKE_VALUES
from slotmesh.client.sync.method import FETCHED_VALUES
from slotmesh.codec import MSGPACK, OCTET_STREAM, DecodeError, encode
from slotmesh.errors import Executed
from tests.support.fakes.counting import count, counted
from tests.support.fakes.generator import CREDIT_VALUES
from tests.support.fakes.router import FakeRouter

pytestmark = pytest.mark.asyncio

WITHIN_S = 10.0


def taken_back(router: FakeRouter) -> list[int]:
    return sorted(call_id for frame in router.cancels for each in frame for call_id in each)


@pytest_asyncio.fixture
async def router() -> AsyncIterator[FakeRouter]:
    async with FakeRouter(yields=count) as router:
        yield router
    assert not router.breaches


@pytest_asyncio.fixture
async def mesh(router: FakeRouter) -> AsyncIterator[slotmesh.SyncMesh]:
    mesh = slotmesh.connect_sync(router.address, close_grace=5)
    yield mesh
    await asyncio.to_thread(mesh.close)


@pytest_asyncio.fixture
async def digits(mesh: slotmesh.SyncMesh) -> slotmesh.SyncEndpoint:
    return (await asyncio.to_thread(mesh.endpoint, "digits")).options(content_type=OCTET_STREAM)


async def test_values_come_in_order_until_the_handler_has_ended(digits: slotmesh.SyncEndpoint) -> None:
    def program() -> None:
        assert list(digits.count.stream(b"5")) == counted(5)
        assert list(digits.count.stream(b"0")) == []
        assert list(digits.count.stream(b"2000")) == counted(2_000)
        values = digits.count.stream(b"2")
        assert [next(values), next(values), next(values, None), next(values, None)] == [b"0", b"1", None, None]

    await asyncio.to_thread(program)


async def test_values_have_the_type_wanted(router: FakeRouter, digits: slotmesh.SyncEndpoint) -> None:
    router.yields = lambda _: (encode(MSGPACK, value) for value in (0, 1, "two", 3))

    def program() -> None:
        method = digits.options(content_type=MSGPACK).count
        assert list(method.stream(3)) == [0, 1, "two", 3]
        values = method.returning(int).stream(3)
        assert [next(values), next(values)] == [0, 1]
        with pytest.raises(DecodeError, match=r"digits\.count .* int"):
            next(values)
        assert list(values) == [], "a value that is not what was asked for ends it"
        with pytest.raises(TypeError, match=r"digits\.count: calls without a reply"):
            digits.options(reply=False).count.stream(b"1")

    await asyncio.to_thread(program)


async def test_a_failure_comes_after_the_values_before_it(router: FakeRouter, digits: slotmesh.SyncEndpoint) -> None:
    def program() -> None:
        values = digits.count.stream(b"3!")
        digits.echo(b"all is here")
        assert [next(values) for _ in range(3)] == counted(3)
        with pytest.raises(slotmesh.HandlerError) as caught:
            next(values)
        error = caught.value
        assert (error.endpoint, error.method, error.call_id) == ("digits", "count", 1)
        assert list(values) == [], "it is told once"

    await asyncio.to_thread(program)
    assert not router.cancels


async def test_the_call_is_made_in_line_with_the_others(router: FakeRouter, digits: slotmesh.SyncEndpoint) -> None:
    def program() -> None:
        with digits.ordered("key") as lane:
            before, values, after = lane.echo.future(b"1"), lane.count.stream(b"2"), lane.echo.future(b"3")
            assert list(values) == counted(2)
        assert (before.result(0), after.result(0)) == (b"1", b"3")

    await asyncio.to_thread(program)
    assert [payload for batch in router.batches for payload in batch.payloads] == [b"1", b"2", b"3"]


async def test_a_slow_loop_holds_its_handler_back(router: FakeRouter, digits: slotmesh.SyncEndpoint) -> None:
    values = await asyncio.to_thread(digits.count.stream, b"1000000")
    assert await asyncio.to_thread(next, values) == b"0"
    assert len(await asyncio.to_thread(list, digits.count.stream(b"3000"))) == 3_000
    (stream,) = router.streams
    assert stream.generators[1].stepped == CREDIT_VALUES, "what arrived was not taken"

    def take(more: int) -> None:
        for _ in range(more):
            next(values)

    await asyncio.to_thread(take, TAKE_VALUES)
    await asyncio.to_thread(digits.echo, b"whatever was told has arrived")
    await router.until(lambda: stream.generators[1].stepped >= CREDIT_VALUES + TAKE_VALUES)
    assert stream.generators[1].stepped <= CREDIT_VALUES + TAKE_VALUES + FETCHED_VALUES
    values.close()
    await router.until(lambda: taken_back(router) == [1])


@pytest.mark.parametrize("way", ["break", "drop", "close", "with", "exception"])
async def test_leaving_early_takes_the_call_back(router: FakeRouter, digits: slotmesh.SyncEndpoint, way: str) -> None:
    kept: list[slotmesh.SyncValueStream[bytes]] = []

    def program() -> None:
        if way == "break":
            for _ in digits.count.stream(b"1000000"):
                break
        elif way == "drop":
            next(digits.count.stream(b"1000000"))
        elif way == "close":
            kept.append(digits.count.stream(b"1000000"))
            next(kept[0])
            kept[0].close()
            kept[0].close()
        elif way == "with":
            kept.append(digits.count.stream(b"1000000"))
            with kept[0] as values:
                next(values)
        else:
            try:
                for _ in digits.count.stream(b"1000000"):
                    raise KeyError
            except KeyError:
                pass

    await asyncio.to_thread(program)
    gc.collect()
    await router.until(lambda: taken_back(router) == [1])
    for values in kept:
        assert await asyncio.to_thread(list, values) == [], "there are no more"


async def test_another_thread_may_close_it(router: FakeRouter, digits: slotmesh.SyncEndpoint) -> None:
    router.held = True
    values = await asyncio.to_thread(digits.count.stream, b"1")
    waiting = asyncio.create_task(asyncio.to_thread(list, values))
    await router.until(lambda: router.calls() == 1)
    values.close()
    async with asyncio.timeout(WITHIN_S):
        assert await waiting == []
    await router.until(lambda: taken_back(router) == [1])


async def test_a_mesh_waits_for_loops_that_go_on(router: FakeRouter) -> None:
    mesh = slotmesh.connect_sync(router.address, close_grace=WITHIN_S)
    begun, closing = threading.Event(), threading.Event()

    def program() -> list[bytes]:
        values = mesh.endpoint("digits").options(content_type=OCTET_STREAM).count.stream(b"2000")
        first = next(values)
        begun.set()
        assert closing.wait(WITHIN_S)
        return [first, *values]

    def close() -> None:
        assert begun.wait(WITHIN_S)
        closing.set()
        mesh.close()

    reading, _ = await asyncio.gather(asyncio.to_thread(program), asyncio.to_thread(close))
    assert reading == counted(2_000)


async def test_values_that_have_come_outlive_the_mesh(router: FakeRouter) -> None:
    def program() -> list[bytes]:
        with slotmesh.connect_sync(router.address) as mesh:
            values = mesh.endpoint("digits").options(content_type=OCTET_STREAM).count.stream(b"200")
        return list(values)

    assert await asyncio.to_thread(program) == counted(200)


async def test_a_mesh_that_is_closed_fails_what_is_left(router: FakeRouter) -> None:
    router.held = True
    mesh = slotmesh.connect_sync(router.address)
    digits = (await asyncio.to_thread(mesh.endpoint, "digits")).options(content_type=OCTET_STREAM)
    waited, later = [await asyncio.to_thread(digits.count.stream, b"9") for _ in range(2)]
    waiting = asyncio.create_task(asyncio.to_thread(next, waited))
    await router.until(lambda: router.calls() == 2)
    await asyncio.to_thread(mesh.close, 0)
    with pytest.raises(slotmesh.CallCancelled) as caught:
        await waiting
    assert (caught.value.method, caught.value.executed) == ("count", Executed.UNKNOWN), "not the wait, but the call"
    with pytest.raises(slotmesh.CallCancelled):
        next(later)
    assert list(later) == []
    later.close()


async def test_a_callback_cannot_wait_for_values(router: FakeRouter, digits: slotmesh.SyncEndpoint) -> None:
    heard: list[object] = []
    future = digits.echo.future(b"x")

    def use(_: object) -> None:
        values = digits.count.stream(b"1")
        try:
            next(values)
        except RuntimeError as error:
            heard.append(error)
        heard.append(values)

    future.add_done_callback(use)
    await asyncio.to_thread(digits.echo, b"y")
    error, values = heard
    assert "the client's own thread" in str(error)
    assert isinstance(values, slotmesh.SyncValueStream)
    assert await asyncio.to_thread(list, values) == [b"0"], "another thread can"


# -- by an rpc of their own --------------------------------------------------------------------------------------------


async def test_values_of_an_rpc(router: FakeRouter, digits: slotmesh.SyncEndpoint) -> None:
    def program() -> None:
        assert list(digits.count.unary_stream(b"300")) == counted(300)
        values = digits.count.unary_stream(b"2!")
        assert [next(values), next(values)] == counted(2)
        with pytest.raises(slotmesh.HandlerError):
            next(values)
        assert list(values) == []
        with pytest.raises(slotmesh.PayloadTooLarge):
            digits.count.unary_stream(bytes(5 * 1024 * 1024))

    await asyncio.to_thread(program)
    assert router.opened == 0


@pytest.mark.parametrize("way", ["close", "drop"])
async def test_leaving_an_rpc_early_takes_the_call_back(
    router: FakeRouter, digits: slotmesh.SyncEndpoint, way: str
) -> None:
    def program() -> None:
        values = digits.count.unary_stream(b"1000000000")
        assert next(values) == b"0"
        if way == "close":
            values.close()
        del values
        gc.collect()

    await asyncio.to_thread(program)
    await router.until(lambda: not router.rpcs)
