"""Large payloads travel in chunks, in both directions, and nothing waits behind them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import pairwise

import pytest
import pytest_asyncio

import slotmesh
from slotmesh.codec import OCTET_STREAM
from slotmesh.errors import Executed, Failure, Reason
from slotmesh.streams.limits import CHUNK_BYTES, LARGE_CHUNK_BYTES, MAX_FRAME_BYTES
from slotmesh.v1 import call_pb2, router_service_pb2
from tests.support.fakes.router import FakeRouter

pytestmark = pytest.mark.asyncio

MIB = 1024 * 1024
MAX = 8 * MIB


def make_router(window_bytes: int = 64 * MIB) -> FakeRouter:
    return FakeRouter(max_payload_bytes=MAX, window_bytes=window_bytes)


@pytest_asyncio.fixture
async def router() -> AsyncIterator[FakeRouter]:
    async with make_router() as router:
        yield router
    assert not router.breaches


@pytest_asyncio.fixture
async def echo(router: FakeRouter) -> AsyncIterator[slotmesh.Method[bytes]]:
    async with slotmesh.connect(router.address, close_grace=0) as mesh:
        yield mesh.endpoint("digits").options(content_type=OCTET_STREAM).echo


def large(size: int, seed: int = 1) -> bytes:
    """Bytes of which no two chunks are alike."""
    return b"".join((at * 7 + seed).to_bytes(8) for at in range(size // 8 + 1))[:size]


def chunks_of(router: FakeRouter) -> list[int]:
    """The call of each chunk that came, in order."""
    return [int(each.removeprefix("chunk ")) for each in router.arrivals if each.startswith("chunk")]


@pytest.mark.parametrize("size", [CHUNK_BYTES, CHUNK_BYTES + 1, MAX_FRAME_BYTES, MAX_FRAME_BYTES + 1, 5 * MIB + 17])
async def test_payloads_of_any_size_come_back(router: FakeRouter, echo: slotmesh.Method[bytes], size: int) -> None:
    payload = large(size)
    assert await echo(payload) == payload
    count = -(-size // LARGE_CHUNK_BYTES) if size > MAX_FRAME_BYTES else 0
    assert [each for each in router.arrivals if " " in each] == ["call 1", *["chunk 1"] * count]
    assert "chunks" in router.openings[0].features


async def test_of_the_large_payloads_of_a_frame_those_that_fit_leave_whole(
    router: FakeRouter, echo: slotmesh.Method[bytes]
) -> None:
    payloads = [large(size, seed) for seed, size in enumerate((600_000, 700_000, 400_000, 100))]
    assert await asyncio.gather(*map(echo, payloads)) == payloads
    assert [list(batch.sizes) for batch in router.batches] == [[len(each) for each in payloads]]
    assert chunks_of(router) == [2]


async def test_large_payloads_take_turns(router: FakeRouter, echo: slotmesh.Method[bytes]) -> None:
    payloads = [large(2 * MIB, seed) for seed in (1, 2, 3)]
    assert await asyncio.gather(*map(echo, payloads)) == payloads
    assert chunks_of(router) == [1, 2, 3] * 2


async def test_while_other_frames_wait_no_two_chunks_follow_each_other(
    router: FakeRouter, echo: slotmesh.Method[bytes]
) -> None:
    await echo(b"first")
    calls = [echo(large(size)) for size in (2 * MIB, 2 * MIB, *[250_000] * 20)]  # five frames, and sixteen chunks
    await asyncio.gather(*calls)
    kinds = [each.split()[0] for each in router.arrivals[1:]]
    last_call = len(kinds) - 1 - kinds[::-1].index("call")
    assert kinds[:last_call].count("chunk") in range(4, 8), "one between two frames of calls, or of other kinds"
    assert all(pair != ("chunk", "chunk") for pair in pairwise(kinds[:last_call]))


async def test_a_call_made_while_chunks_leave_does_not_wait_for_the_last(
    router: FakeRouter, echo: slotmesh.Method[bytes]
) -> None:
    call = echo(large(8 * MIB))
    await router.until(lambda: len(chunks_of(router)) >= 2)
    await echo(b"small")
    assert len(chunks_of(router)) < 8, "its answer comes before the last chunk has left"
    assert await call == large(8 * MIB)


async def test_a_map_of_large_and_small_payloads(router: FakeRouter, echo: slotmesh.Method[bytes]) -> None:
    payloads = [large(size) for size in (10, MIB, 0, CHUNK_BYTES + 1, CHUNK_BYTES, 20)]
    assert await echo.map(payloads) == payloads
    (batch,) = router.batches
    assert list(batch.sizes) == [len(payload) for payload in payloads]


async def test_announced_bytes_count_against_the_window() -> None:
    async with make_router(window_bytes=3 * MIB) as router:
        router.held = True
        async with slotmesh.connect(router.address, close_grace=0) as mesh:
            echo = mesh.endpoint("digits").options(content_type=OCTET_STREAM).echo
            calls = [echo(large(MIB, seed)) for seed in range(5)]
            await router.until(lambda: router.calls() == 3)
            alone = echo(large(4 * MIB))
            router.release()
            assert await asyncio.gather(*calls, alone) == [*(large(MIB, seed) for seed in range(5)), large(4 * MIB)]
        assert not router.breaches


async def test_a_payload_over_the_limit_fails_before_it_is_sent(
    router: FakeRouter, echo: slotmesh.Method[bytes]
) -> None:
    await echo(b"the limit is known now")
    with pytest.raises(slotmesh.PayloadTooLarge) as caught:
        await echo(b"x" * (MAX + 1))
    assert str(MAX) in str(caught.value)
    assert str(MAX + 1) in str(caught.value)
    assert caught.value.executed is Executed.NO
    assert caught.value.metadata == {"limit": str(MAX), "actual": str(MAX + 1)}
    assert router.calls() == 1


async def test_a_limit_that_is_found_when_the_stream_opens_binds_what_waits(
    router: FakeRouter, echo: slotmesh.Method[bytes]
) -> None:
    over = b"x" * (MAX + 1)
    before, call, after = echo(b"1"), echo(over), echo(b"2")
    together = echo.map([b"3", over, b"4"], return_exceptions=True)
    with pytest.raises(slotmesh.PayloadTooLarge):
        await call
    assert (await before, await after) == (b"1", b"2")
    first, second, third = await together
    assert (first, third) == (b"3", b"4")
    assert isinstance(second, slotmesh.PayloadTooLarge)


async def test_unary_calls_have_the_limit_of_a_message(router: FakeRouter, echo: slotmesh.Method[bytes]) -> None:
    with pytest.raises(slotmesh.PayloadTooLarge) as caught:
        await echo.unary(b"x" * (4 * MIB + 1))
    assert caught.value.executed is Executed.NO
    assert str(4 * MIB) in str(caught.value)


async def test_a_call_taken_back_stops_its_chunks(router: FakeRouter, echo: slotmesh.Method[bytes]) -> None:
    await echo(b"first")
    payload = large(8 * MIB)
    call, *others = (echo(payload) for _ in range(6))  # they take turns: none is written whole soon
    await router.until(lambda: len(chunks_of(router)) >= 4)
    call.cancel()
    assert await asyncio.gather(*others) == [payload] * len(others)
    assert [chunks_of(router).count(call_id) for call_id in range(3, 8)] == [8] * len(others)
    assert chunks_of(router).count(2) < 8


async def test_after_a_break_calls_are_announced_again_with_all_their_chunks() -> None:
    async with make_router() as first, make_router() as second:
        first.held = True
        async with slotmesh.connect([first.address, second.address], close_grace=0) as mesh:
            echo = mesh.endpoint("digits").options(content_type=OCTET_STREAM).echo
            calls = [echo(large(8 * MIB, seed)) for seed in (1, 2)]
            small = echo(b"small")
            await first.until(lambda: len(chunks_of(first)) >= 5)
            first.break_streams()
            assert await asyncio.gather(*calls, small) == [large(8 * MIB, 1), large(8 * MIB, 2), b"small"]
        assert chunks_of(second).count(1) == chunks_of(second).count(2) == 8
        assert all(batch.resend for batch in second.batches)
        assert not first.breaches
        assert not second.breaches


async def test_a_result_that_had_half_come_comes_again() -> None:
    async with make_router() as first, make_router() as second:
        first.held = True
        async with slotmesh.connect([first.address, second.address], close_grace=0) as mesh:
            call = mesh.endpoint("digits").options(content_type=OCTET_STREAM).echo(b"x")
            await first.until(lambda: first.calls() == 1)
            half = call_pb2.Chunk(call_id=1, offset=0, total=2 * CHUNK_BYTES, data=b"o" * CHUNK_BYTES)
            first.say(router_service_pb2.StreamCallsResponse(chunk=half))
            await first.stop()
            second.answer = lambda batch: [large(2 * CHUNK_BYTES)] * len(batch.ids)
            assert await call == large(2 * CHUNK_BYTES)


@pytest.mark.parametrize(
    "chunks",
    [
        pytest.param([], id="none came"),
        pytest.param([(0, 3, b"ab")], id="the end is missing"),
        pytest.param([(1, 3, b"bc")], id="the beginning is missing"),
        pytest.param([(0, 2, b"ab")], id="another size"),
    ],
)
async def test_a_result_without_its_chunks_is_a_failure_of_that_call(
    router: FakeRouter, echo: slotmesh.Method[bytes], chunks: list[tuple[int, int, bytes]]
) -> None:
    router.held = True
    call, other = echo(b"1"), echo(b"2")
    await router.until(lambda: router.calls() == 2)
    for offset, total, data in chunks:
        chunk = call_pb2.Chunk(call_id=1, offset=offset, total=total, data=data)
        router.say(router_service_pb2.StreamCallsResponse(chunk=chunk))
    results = call_pb2.ResultBatch(
        call_ids=[1, 2], payloads=[b"", b"two"], content_type=OCTET_STREAM, chunked_sizes=[3, 0]
    )
    router.say(router_service_pb2.StreamCallsResponse(results=call_pb2.ResultFrame(batches=[results])))
    with pytest.raises(slotmesh.InternalError, match="chunks") as caught:
        await call
    assert caught.value.executed is Executed.YES
    assert await other == b"two"


async def test_chunks_of_strangers_and_of_failed_calls_are_passed_over(
    router: FakeRouter, echo: slotmesh.Method[bytes]
) -> None:
    router.held = True
    calls = [echo(b"1"), echo(b"2")]
    await router.until(lambda: router.calls() == 2)
    for call_id in (1, 77):
        chunk = call_pb2.Chunk(call_id=call_id, offset=0, total=10, data=b"half")
        router.say(router_service_pb2.StreamCallsResponse(chunk=chunk))
    router.streams[0].fail([1], Failure(reason=Reason.REPLICA_LOST, message="gone", executed=Executed.UNKNOWN))
    with pytest.raises(slotmesh.ReplicaLost):
        await calls[0]
    router.streams[0].answer_ids([2], [b"two"], OCTET_STREAM)
    assert await calls[1] == b"two"


async def test_announced_calls_of_a_router_that_leaves_get_their_chunks(
    router: FakeRouter, echo: slotmesh.Method[bytes]
) -> None:
    await echo(b"first")
    payload = large(4 * MIB)
    call = echo(payload)
    await router.until(lambda: len(chunks_of(router)) >= 2)
    router.go_away()
    assert await call == payload
    assert router.opened == 1
