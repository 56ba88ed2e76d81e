"""The client over real gRPC when something goes wrong: the truth for each call, and for no other call."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
import pytest_asyncio

import slotmesh
from slotmesh.codec import MSGPACK, OCTET_STREAM, decode
from slotmesh.errors import Executed, Failure, Reason
from slotmesh.v1 import call_pb2
from tests.support.controllers import running_controller
from tests.support.fakes.router import FakeRouter, Response
from tests.support.fakes.router_batches import Batch

pytestmark = pytest.mark.asyncio

HANDLER_RAISED = Failure(
    reason=Reason.HANDLER_ERROR,
    message="ValueError: odd",
    executed=Executed.YES,
    metadata={"replica_id": "digits-v1-0"},
)


@pytest_asyncio.fixture
async def router() -> AsyncIterator[FakeRouter]:
    async with FakeRouter() as router:
        yield router
    assert not router.breaches


@pytest_asyncio.fixture
async def mesh(router: FakeRouter) -> AsyncIterator[slotmesh.Mesh]:
    async with slotmesh.connect(router.address) as mesh:
        yield mesh


def odd_fails(batch: Batch) -> Sequence[bytes | Failure]:
    return [HANDLER_RAISED if decode(MSGPACK, payload)[0] % 2 else payload for payload in batch.payloads]


async def failure_of(future: asyncio.Future[Any]) -> slotmesh.SlotmeshError:
    with pytest.raises(slotmesh.SlotmeshError) as caught:
        await future
    return caught.value


async def test_a_failure_is_typed_and_meets_its_own_call_only(router: FakeRouter, mesh: slotmesh.Mesh) -> None:
    router.answer = odd_fails
    echo = mesh.endpoint("digits").echo
    calls = [echo(number) for number in range(10)]
    assert [await call for call in calls[::2]] == [[0], [2], [4], [6], [8]]
    for number, call in enumerate(calls[1::2]):
        error = await failure_of(call)
        assert isinstance(error, slotmesh.HandlerError)
        assert repr(error) == "HandlerError('UNKNOWN/HANDLER_ERROR: ValueError: odd')"
        assert (error.endpoint, error.method, error.call_id) == ("digits", "echo", 2 * number + 2)
        assert (error.executed, error.replica_id) == (Executed.YES, "digits-v1-0")


async def test_a_map_raises_its_first_failure_or_keeps_them_all(router: FakeRouter, mesh: slotmesh.Mesh) -> None:
    router.answer = odd_fails
    echo = mesh.endpoint("digits").echo
    error = await failure_of(echo.map(range(10)))
    assert (error.call_id, error.failed_items) == (2, (1, 3, 5, 7, 9))
    assert str(error) == (
        "UNKNOWN/HANDLER_ERROR: ValueError: odd; 5 of 10 items of the map failed: 1, 3, 5, 7, 9 (counted from 0)"
    )
    many = await failure_of(echo.map(range(4000)))
    assert str(many).endswith(
        "2,000 of 4,000 items of the map failed: 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, … (counted from 0)"
    )
    kept = await echo.map(range(4), return_exceptions=True)
    assert (kept[0], kept[2]) == ([0], [2])
    assert all(isinstance(kept[place], slotmesh.HandlerError) for place in (1, 3))


async def test_a_unary_failure_is_the_same_failure(router: FakeRouter, mesh: slotmesh.Mesh) -> None:
    router.answer = odd_fails
    with pytest.raises(slotmesh.HandlerError) as caught:
        await mesh.endpoint("digits").echo.unary(1)
    error = caught.value
    assert str(error) == "UNKNOWN/HANDLER_ERROR: ValueError: odd"
    assert (error.endpoint, error.method, error.executed) == ("digits", "echo", Executed.YES)
    assert error.replica_id == "digits-v1-0"


async def test_a_rejected_batch_fails_its_calls_and_no_others(router: FakeRouter, mesh: slotmesh.Mesh) -> None:
    router.held = True
    digits = mesh.endpoint("digits")
    accepted, rejected, together = digits.a(1), [digits.b(2), digits.b(3)], digits.c.map([4, 5])
    await router.until(lambda: router.calls() == 5)
    (stream, first), (_, second), (_, third) = router.waiting
    full = Failure(reason=Reason.WINDOW_EXCEEDED, message="too many", retry_delay_s=0.5)
    stream.reject(second, full)
    stream.reject(third, full)
    delays = set()
    for call in (*rejected, together):
        error = await failure_of(call)
        assert isinstance(error, slotmesh.WindowExceeded)
        assert error.executed is Executed.NO
        assert error.retry_delay_s == pytest.approx(0.5, rel=0.21)
        delays.add(error.retry_delay_s)
    assert len(delays) > 1, "those who were refused together do not come again together"
    assert not accepted.done()
    stream.answer(first, first.payloads)
    assert await accepted == [1]
    assert router.opened == 1


async def test_a_full_queue_says_when_to_come_again(router: FakeRouter, mesh: slotmesh.Mesh) -> None:
    full = Failure(reason=Reason.QUEUE_FULL, message="20000 calls wait", retry_delay_s=0.25)
    router.answer = lambda batch: [full] * len(batch.payloads)
    echo = mesh.endpoint("digits").echo
    (kept,) = await echo.map([1], return_exceptions=True)
    with pytest.raises(slotmesh.QueueFull) as caught:
        await echo.unary(1)
    for error in (await failure_of(echo(1)), await failure_of(echo.map([1, 2])), kept, caught.value):
        assert isinstance(error, slotmesh.QueueFull)
        assert (error.executed, error.retry_delay_s) == (Executed.NO, 0.25)


async def test_a_payload_over_the_limit_fails_before_it_is_sent(router: FakeRouter, mesh: slotmesh.Mesh) -> None:
    router.max_payload_bytes = 1_000
    echo = mesh.endpoint("digits").options(content_type=OCTET_STREAM).echo
    assert await echo(b"x" * 1_000) == b"x" * 1_000
    before, large, after = echo(b"a"), echo(b"x" * 1_001), echo(b"b")
    error = await failure_of(large)
    assert isinstance(error, slotmesh.PayloadTooLarge)
    assert (error.executed, error.metadata) == (Executed.NO, {"limit": "1000", "actual": "1001"})
    assert "1001" in str(error)
    assert "1000" in str(error)
    assert (await before, await after) == (b"a", b"b")
    items = [b"0", b"x" * 2_000, b"2", b"3", b"x" * 3_000]
    kept = await echo.map(items, return_exceptions=True)
    assert [kept[0], *kept[2:4]] == [b"0", b"2", b"3"]
    assert [type(kept[1]), type(kept[4])] == [slotmesh.PayloadTooLarge] * 2
    assert "2000" in str(await failure_of(echo.map(items)))
    assert all(len(payload) <= 1_000 for batch in router.batches for payload in batch.payloads)


async def test_without_a_word_of_the_router_the_limit_is_four_mebibytes(mesh: slotmesh.Mesh) -> None:
    echo = mesh.endpoint("digits").options(content_type=OCTET_STREAM).echo
    assert isinstance(await failure_of(echo(b"x" * (4 * 1024 * 1024 + 1))), slotmesh.PayloadTooLarge)


async def test_an_idle_stream_that_broke_is_opened_again_by_the_next_call(
    router: FakeRouter, mesh: slotmesh.Mesh
) -> None:
    echo = mesh.endpoint("digits").echo
    assert await echo(1) == [1]
    router.break_streams()
    await router.until(lambda: not router.streams)
    assert await asyncio.gather(*[echo(2), echo(3)]) == [[2], [3]]
    assert router.opened == 2


async def test_a_router_that_went_away_and_came_back_is_found_again() -> None:
    async with FakeRouter() as first:
        address, port = first.address, int(first.address.rpartition(":")[2])
        async with slotmesh.connect(address) as mesh:
            echo = mesh.endpoint("digits").echo
            assert await echo(1) == [1]
            first.held = True
            sent = echo(2)
            await first.until(lambda: first.calls() == 2)
            await first.stop()
            waiting = echo(3)
            async with FakeRouter(port=port) as second:
                assert await asyncio.gather(*[sent, waiting]) == [[2], [3]]
                assert second.batches[0].resend
                assert not second.breaches


async def test_without_a_router_calls_fail_in_time_and_were_not_executed() -> None:
    async with FakeRouter() as router:
        address = router.address
    async with slotmesh.connect(address, connect_timeout=0.3) as mesh:
        digits = mesh.endpoint("digits")
        loop = asyncio.get_running_loop()
        began = loop.time()
        calls = [digits.echo(1), digits.echo.map([1, 2]), digits.ordered("key").echo(1)]
        for call in calls:
            error = await failure_of(call)
            assert (type(error), error.executed) == (slotmesh.RouterLost, Executed.NO)
            assert error.call_id == 0
            assert f"no router answered at {address} within 0.3 s" in str(error)
            assert "connect()" in str(error)
        assert 0.25 < loop.time() - began < 5


async def test_a_router_that_says_nothing_is_no_router(router: FakeRouter) -> None:
    router.silent = True
    async with slotmesh.connect(router.address, connect_timeout=0.2) as mesh:
        error = await failure_of(mesh.endpoint("digits").echo(1))
        assert (type(error), error.executed) == (slotmesh.RouterLost, Executed.NO)
        assert not router.batches


async def test_a_router_that_refuses_streams_for_good_is_not_asked_again(
    router: FakeRouter, mesh: slotmesh.Mesh
) -> None:
    router.refusal = Failure(reason=Reason.NOT_IMPLEMENTED, message="no streams here")
    error = await failure_of(mesh.endpoint("digits").echo(1))
    assert (type(error), error.executed) == (slotmesh.NotImplementedByPeer, Executed.NO)
    assert "no streams here" in str(error)
    router.refusal = None
    assert await mesh.endpoint("digits").echo(2) == [2]


async def test_the_address_of_another_server_is_told_as_no_routers() -> None:
    async with running_controller() as other, slotmesh.connect(other.controller.address) as mesh:
        digits, errors = mesh.endpoint("digits"), []
        for call in (
            lambda: digits.echo(1),
            lambda: digits.echo.unary(1),
            lambda: anext(digits.echo.stream(1)),
            lambda: anext(digits.echo.unary_stream(1)),
            lambda: digits.reserve().__aenter__(),
        ):
            with pytest.raises(slotmesh.NotImplementedByPeer) as caught:
                await call()
            errors.append(caught.value)
    for error in errors:
        assert error.executed is Executed.NO
        assert f"what answers at {other.controller.address} is not a router: it does not know slotmesh.v1" in str(error)
        assert "give connect() the address of one" in str(error)
    assert "slotmesh.v1.SlotService" in str(errors[-1])


async def test_a_router_that_drains_is_asked_again_until_another_one_is_there(
    router: FakeRouter, mesh: slotmesh.Mesh
) -> None:
    router.refusal = Failure(reason=Reason.DRAINING, message="I leave")
    asked = asyncio.create_task(router.until(lambda: router.refused >= 2))
    call = mesh.endpoint("digits").echo(1)
    await asked
    router.refusal = None
    assert await call == [1]


async def test_a_router_that_leaves_and_is_the_only_one_answers_what_it_has_and_is_asked_again(
    router: FakeRouter, mesh: slotmesh.Mesh
) -> None:
    router.held = True
    echo = mesh.endpoint("digits").echo
    first, before = echo.map([0]), echo(1)
    await router.until(lambda: router.calls() == 2)
    router.go_away()
    stream, batch = router.waiting.pop(0)
    stream.answer(batch, batch.payloads)
    assert await first == [[0]]  # so that it has heard what the router said before
    after = echo(2)
    router.release()
    assert (await before, await after) == ([1], [2])
    assert (router.opened, router.half_closed) == (2, 1)
    assert [list(batch.ids) for batch in router.batches] == [[1], [2], [3]]


async def test_a_frame_that_makes_no_sense_ends_the_stream_and_not_the_client(
    router: FakeRouter, mesh: slotmesh.Mesh, caplog: pytest.LogCaptureFixture
) -> None:
    router.held = True
    echo = mesh.endpoint("digits").echo
    pending = echo(1)
    await router.until(lambda: router.calls() == 1)
    senseless = call_pb2.ResultFrame(batches=[call_pb2.ResultBatch(call_ids=[1, 2], payloads=[b"1"])])
    with caplog.at_level(logging.ERROR):
        router.say(Response(results=senseless))
        error = await failure_of(pending)
    assert "the stream of endpoint 'digits' failed" in caplog.text
    assert (type(error), error.executed) == (slotmesh.InternalError, Executed.UNKNOWN)
    router.waiting.clear()
    router.held = False
    assert await echo(2) == [2]
    await router.until(lambda: len(router.streams) == 1)


async def test_leaving_a_lane_whose_calls_failed_does_not_wait(router: FakeRouter, mesh: slotmesh.Mesh) -> None:
    router.answer = lambda batch: [HANDLER_RAISED] * len(batch.payloads)
    async with mesh.endpoint("digits").ordered("key") as lane:
        calls = [lane.add(1), lane.add(2), lane.add.map([3])]
    assert all(isinstance(call.exception(), slotmesh.HandlerError) for call in calls)


async def test_dropped_calls_that_fail_are_reported_once(router: FakeRouter, mesh: slotmesh.Mesh) -> None:
    reports: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: reports.append(context))
    router.held = True
    digits = mesh.endpoint("digits")
    for number in range(200):
        digits.ordered(f"key-{number}").add(number)
    await router.until(lambda: router.calls() == 200)
    stream = router.streams[0]
    stream.fail(range(1, 201), HANDLER_RAISED)
    router.waiting.clear()
    router.held = False
    assert await digits.echo("after") == ["after"]
    assert [type(report["exception"]) for report in reports] == [slotmesh.HandlerError]
