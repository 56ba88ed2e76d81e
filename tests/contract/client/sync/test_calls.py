"""The synchronous client over real gRPC: calls that block, futures, maps, from one thread and from several."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import AsyncIterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import pytest
import pytest_asyncio

import slotmesh
from slotmesh.codec import JSON, OCTET_STREAM, DecodeError
from slotmesh.errors import Executed, Reason
from slotmesh.streams.pacing import FULL_CALLS
from tests.contract.odd_failures import odd_fails
from tests.support.fakes.router import FakeRouter

pytestmark = pytest.mark.asyncio

WITHIN_S = 10.0
"""What no wait here comes near."""


@dataclass
class Echo:
    first: int


def taken_back(router: FakeRouter) -> list[int]:
    return sorted(call_id for frame in router.cancels for each in frame for call_id in each)


@pytest_asyncio.fixture
async def router() -> AsyncIterator[FakeRouter]:
    async with FakeRouter() as router:
        yield router
    assert not router.breaches


@pytest_asyncio.fixture
async def mesh(router: FakeRouter) -> AsyncIterator[slotmesh.SyncMesh]:
    mesh = slotmesh.connect_sync(router.address, close_grace=WITHIN_S)
    yield mesh
    await asyncio.to_thread(mesh.close)


@pytest_asyncio.fixture
async def digits(mesh: slotmesh.SyncMesh) -> slotmesh.SyncEndpoint:
    return await asyncio.to_thread(mesh.endpoint, "digits")


class Gate:
    """Holds the client's thread up, so that what is handed over meanwhile gathers."""

    def __init__(self, call: Future[Any]) -> None:
        self._is_open = threading.Event()
        self._is_held = threading.Event()
        call.add_done_callback(self._hold)

    def __enter__(self) -> None:
        assert self._is_held.wait(WITHIN_S)

    def __exit__(self, *_: object) -> None:
        self._is_open.set()

    def _hold(self, _: Future[Any]) -> None:
        self._is_held.set()
        assert self._is_open.wait(WITHIN_S)


# -- results -----------------------------------------------------------------------------------------------------------


async def test_calls_block_and_return(router: FakeRouter, mesh: slotmesh.SyncMesh) -> None:
    def program() -> None:
        digits = mesh.endpoint("digits")
        assert digits.echo(1) == [1]
        assert digits.echo(1, "two") == [1, "two"]
        assert digits.echo(first=1) == {"first": 1}
        assert digits(3) == [3]
        assert digits.method("options")(4) == [4]
        assert digits.echo.map(range(1_000)) == [[number] for number in range(1_000)]
        assert digits.echo.map([]) == []
        assert digits.echo.map(list("ab"), [1, 2]) == [["a", 1], ["b", 2]]
        assert digits.echo.unary(5) == [5]
        assert digits.echo.future(6).result(WITHIN_S) == [6]
        assert mesh.endpoint("digits") is digits
        assert digits.echo is digits.echo

    await asyncio.to_thread(program)
    assert router.opened == 1
    assert [each.options.method for each in router.batches[:5]] == ["echo", "echo", "echo", "", "options"]


async def test_views_have_their_options_and_results_their_type(
    router: FakeRouter, digits: slotmesh.SyncEndpoint
) -> None:
    def program() -> None:
        raw = digits.options(content_type=OCTET_STREAM, timeout=30, metadata={"who": "me"})
        assert raw.echo(b"x") == b"x"
        assert digits.echo.options(content_type=JSON, shard_key="a")(1) == [1]
        assert digits.echo.returning(Echo)(first=1) == Echo(1)
        with pytest.raises(DecodeError, match=r"digits\.echo .* str"):
            digits.echo.returning(str)(1)
        with pytest.raises(slotmesh.BadRequest, match="timeout"):
            digits.options(timeout=-1)
        with pytest.raises(TypeError, match="no option pace"):
            digits.echo.options(pace=1)  # type: ignore[call-arg]
        with pytest.raises(TypeError, match=r"never|octet-stream"):
            raw.echo.returning(int)

    await asyncio.to_thread(program)
    first, second = (each.options for each in router.batches[:2])
    assert (first.content_type, first.timeout.seconds, dict(first.metadata)) == (OCTET_STREAM, 30, {"who": "me"})
    assert (second.content_type, second.shard_key) == (JSON, "a")


async def test_threads_share_a_mesh(router: FakeRouter, mesh: slotmesh.SyncMesh) -> None:
    def program(number: int) -> None:
        echo = mesh.endpoint("digits").options(idempotent=True).echo
        for at in range(20):
            assert echo(number, at) == [number, at]
        futures = [mesh.endpoint("digits").echo.future(number, at) for at in range(100)]
        assert [future.result(WITHIN_S) for future in futures] == [[number, at] for at in range(100)]
        assert echo.map([number] * 100, range(100)) == [[number, at] for at in range(100)]

    await asyncio.gather(*(asyncio.to_thread(program, number) for number in range(4)))
    assert router.opened == 1


async def test_what_gathers_while_the_client_is_busy_leaves_together(
    router: FakeRouter, digits: slotmesh.SyncEndpoint
) -> None:
    def program() -> list[Future[Any]]:
        with Gate(digits.echo.future(-1)):
            return [digits.echo.future(number) for number in range(FULL_CALLS)]

    futures = await asyncio.to_thread(program)
    await router.until(lambda: router.calls() == 1 + FULL_CALLS)
    assert [len(batch.payloads) for batch in router.batches] == [1, FULL_CALLS], "one wake, one batch"
    for number, future in enumerate(futures):
        assert await asyncio.wrap_future(future) == [number]


async def test_a_call_is_encoded_when_it_is_made(digits: slotmesh.SyncEndpoint) -> None:
    def program() -> None:
        numbers = [1]
        with Gate(digits.echo.future()):
            future = digits.echo.future(numbers)
            numbers.append(2)
        assert future.result(WITHIN_S) == [[1]]

    await asyncio.to_thread(program)


async def test_futures_are_those_that_everybody_knows(router: FakeRouter, digits: slotmesh.SyncEndpoint) -> None:
    router.held = True
    futures = [digits.echo.future(number) for number in range(3)]
    await router.until(lambda: router.calls() == 3)
    waiting = asyncio.create_task(asyncio.to_thread(concurrent.futures.wait, futures, WITHIN_S))
    assert futures[1].cancel()
    assert futures[1].cancel(), "again"
    router.release()
    done, not_done = await waiting
    assert (done, not_done) == (set(futures), set())
    assert futures[1].cancelled()
    assert not futures[0].cancel(), "too late"
    assert await asyncio.wrap_future(futures[2]) == [2]
    with pytest.raises(concurrent.futures.CancelledError):
        futures[1].result()


async def test_a_wait_has_an_end_and_the_call_goes_on(router: FakeRouter, digits: slotmesh.SyncEndpoint) -> None:
    router.held = True
    future = digits.echo.future(1)
    with pytest.raises(TimeoutError):
        await asyncio.to_thread(future.result, 0.01)
    with pytest.raises(TimeoutError):
        await asyncio.to_thread(future.exception, 0.01)
    router.release()
    assert await asyncio.to_thread(future.result, WITHIN_S) == [1]
    assert future.exception() is None
    assert not router.cancels


# -- taking back -------------------------------------------------------------------------------------------------------


async def test_a_cancelled_call_is_taken_back_or_never_leaves(
    router: FakeRouter, digits: slotmesh.SyncEndpoint
) -> None:
    router.window_calls, router.held = 2, True
    futures = [digits.echo.future(number) for number in range(4)]
    await router.until(lambda: router.calls() == 2)
    assert futures[1].cancel()
    assert futures[2].cancel()
    await router.until(lambda: taken_back(router) == [2])
    router.release()
    assert await asyncio.wrap_future(futures[3]) == [3]
    assert await asyncio.wrap_future(futures[0]) == [0]
    assert router.calls() == 3, "one never left"
    assert taken_back(router) == [2]


async def test_a_map_that_takes_too_long_is_taken_back(router: FakeRouter, digits: slotmesh.SyncEndpoint) -> None:
    router.held = True
    with pytest.raises(TimeoutError):
        await asyncio.to_thread(digits.echo.map, range(3), timeout=0.05)
    await router.until(lambda: taken_back(router) == [1, 2, 3])


async def test_cancels_and_results_may_meet(router: FakeRouter, digits: slotmesh.SyncEndpoint) -> None:
    def program(number: int) -> tuple[int, int]:
        counts = [0, 0]
        for _ in range(10):
            futures = [digits.echo.future(at) for at in range(50)]
            futures[number].result(WITHIN_S)
            given_up = [future.cancel() for future in futures]
            for at, (future, is_given_up) in enumerate(zip(futures, given_up, strict=True)):
                assert future.done()
                assert future.cancelled() is is_given_up
                if not is_given_up:
                    assert future.result() == [at]
                counts[is_given_up] += 1
        return counts[0], counts[1]

    both = await asyncio.gather(*(asyncio.to_thread(program, number) for number in range(4)))
    assert sum(answered + cancelled for answered, cancelled in both) == 2_000


# -- failures ----------------------------------------------------------------------------------------------------------


async def test_a_failure_says_everything(router: FakeRouter, digits: slotmesh.SyncEndpoint) -> None:
    router.answer = odd_fails

    def program() -> None:
        futures = [digits.echo.future(number) for number in range(4)]
        assert futures[2].result(WITHIN_S) == [2]
        for call_id, future in ((2, futures[1]), (4, futures[3])):
            error = future.exception(WITHIN_S)
            assert isinstance(error, slotmesh.HandlerError)
            assert (error.status, error.reason, error.executed) == ("UNKNOWN", Reason.HANDLER_ERROR, Executed.YES)
            assert (error.endpoint, error.method, error.call_id) == ("digits", "echo", call_id)
            assert error.replica_id == "digits-v1-0"
        with pytest.raises(slotmesh.HandlerError, match="odd"):
            digits.echo(1)
        with pytest.raises(slotmesh.HandlerError) as caught:
            digits.echo.map(range(4))
        assert caught.value.call_id == 7
        kept = digits.echo.map(range(2), return_exceptions=True)
        assert kept[0] == [0]
        assert isinstance(kept[1], slotmesh.HandlerError)
        with pytest.raises(slotmesh.HandlerError) as caught:
            digits.echo.unary(1)
        assert (caught.value.endpoint, caught.value.method) == ("digits", "echo")

    await asyncio.to_thread(program)


async def test_a_mistake_is_raised_where_it_is_made(router: FakeRouter, mesh: slotmesh.SyncMesh) -> None:
    def program() -> None:
        digits = mesh.endpoint("digits")
        with pytest.raises(TypeError, match=r"digits\.echo: "):
            digits.echo(1, named=2)
        with pytest.raises(TypeError, match=r"digits\.echo: "):
            digits.echo.future(object())
        with pytest.raises(TypeError, match=r"digits\.echo: "):
            digits.echo.map([object()])
        with pytest.raises(TypeError, match=r"digits\.echo: "):
            digits.echo.unary(object())
        with pytest.raises(ValueError, match="length"):
            digits.echo.map([1], [1, 2])
        with pytest.raises(ValueError, match="ordering key"):
            digits.ordered("")
        with pytest.raises(ValueError, match="name"):
            mesh.endpoint("")
        with pytest.raises(ValueError, match="underscore"):
            digits.method("_hidden")
        with pytest.raises(AttributeError):
            _ = digits._hidden

    await asyncio.to_thread(program)
    assert not router.calls()


async def test_where_nobody_listens_calls_fail_in_time() -> None:
    async with FakeRouter() as router:
        address = router.address
    with slotmesh.connect_sync(address, connect_timeout=0.2) as mesh:
        error = await asyncio.to_thread(mesh.endpoint("digits").echo.future(1).exception, WITHIN_S)
    assert isinstance(error, slotmesh.RouterLost)
    assert error.executed is Executed.NO
