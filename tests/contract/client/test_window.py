"""The client keeps to the router's window, whatever it becomes. The fake router notes every breach."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

import slotmesh
from slotmesh.codec import OCTET_STREAM
from tests.support.fakes.router import FakeRouter

pytestmark = pytest.mark.asyncio


@pytest_asyncio.fixture
async def router() -> AsyncIterator[FakeRouter]:
    async with FakeRouter(window_calls=10, window_bytes=1_000) as router:
        router.held = True
        yield router
    assert not router.breaches


@pytest_asyncio.fixture
async def echo(router: FakeRouter) -> AsyncIterator[slotmesh.Method[bytes]]:
    async with slotmesh.connect(router.address, close_grace=0) as mesh:
        yield mesh.endpoint("digits").options(content_type=OCTET_STREAM).echo


async def test_no_more_calls_than_the_window_are_unanswered(router: FakeRouter, echo: slotmesh.Method[bytes]) -> None:
    calls = [echo(b"%d" % number) for number in range(25)]
    together = echo.map([b"x"] * 25)
    await router.until(lambda: router.calls() == 10)
    assert len(router.streams[0].unanswered) == 10
    router.release()
    assert await asyncio.gather(*calls) == [b"%d" % number for number in range(25)]
    assert await together == [b"x"] * 25
    assert router.opened == 1


async def test_no_more_bytes_than_the_window_are_unanswered(router: FakeRouter, echo: slotmesh.Method[bytes]) -> None:
    calls = [echo(b"x" * 300) for _ in range(8)]
    await router.until(lambda: router.calls() == 3)
    router.release()
    assert await asyncio.gather(*calls) == [b"x" * 300] * 8


async def test_a_call_larger_than_the_window_goes_beside_the_others() -> None:
    """So that it waits for nobody, who might wait for it, and nobody waits for it but its like."""
    async with FakeRouter(window_calls=10, window_bytes=1_000) as router:
        router.held = True
        async with slotmesh.connect(router.address) as mesh:
            digits = mesh.endpoint("digits").options(content_type=OCTET_STREAM)
            small, large, another = digits.echo(b"s"), digits.ordered("k").echo(b"x" * 5_000), digits.big(b"y" * 2_000)
            await router.until(lambda: router.calls() == 2)
            after, full = digits.echo(b"z" * 999), digits.echo(b"f")
            await router.until(lambda: router.calls() == 3)
            assert [[len(payload) for payload in batch.payloads] for batch in router.batches] == [[1], [5_000], [999]]
            router.release()
            assert [*await asyncio.gather(small, large, after)] == [b"s", b"x" * 5_000, b"z" * 999]
            assert [*await asyncio.gather(another, full)] == [b"y" * 2_000, b"f"]
    assert not router.breaches


async def test_a_large_call_counts_for_a_router_with_a_wider_window() -> None:
    async with (
        FakeRouter(window_bytes=1_000) as one,
        FakeRouter(window_bytes=6_000) as two,
    ):
        one.held = two.held = True
        async with slotmesh.connect([one.address, two.address]) as mesh:
            echo = mesh.endpoint("digits").options(content_type=OCTET_STREAM).echo
            large = echo(b"x" * 5_000)
            await one.until(lambda: one.calls() == 1)
            one.break_streams()
            await two.until(lambda: two.calls() == 1)
            fits, waits = echo(b"y" * 900), echo(b"z" * 900)
            await two.until(lambda: two.calls() == 2)
            two.release()
            assert list(map(len, await asyncio.gather(large, fits, waits))) == [5_000, 900, 900]
    assert not one.breaches + two.breaches


@pytest.mark.parametrize("is_first", [True, False])
async def test_a_large_call_that_is_sent_again_goes_beside_the_others(is_first: bool) -> None:
    async with (
        FakeRouter(window_bytes=1_000) as one,
        FakeRouter(window_bytes=1_000) as two,
    ):
        one.held = two.held = True
        async with slotmesh.connect([one.address, two.address]) as mesh:
            echo = mesh.endpoint("digits").options(content_type=OCTET_STREAM).echo
            sent = []
            for size in (5_000, 1) if is_first else (1, 5_000):
                sent.append(echo(b"x" * size))
                await one.until(lambda: one.calls() == len(sent))
            one.break_streams()
            await two.until(lambda: two.calls() == 2)
            new = echo(b"new")
            await two.until(lambda: two.calls() == 3)
            two.release()
            await asyncio.gather(*sent, new)
    assert not one.breaches + two.breaches


async def test_where_a_narrower_window_is_full_a_large_call_waits() -> None:
    async with (
        FakeRouter(window_bytes=6_000) as one,
        FakeRouter(window_bytes=1_000) as two,
    ):
        one.held = two.held = True
        async with slotmesh.connect([one.address, two.address]) as mesh:
            digits = mesh.endpoint("digits").options(content_type=OCTET_STREAM)
            before = digits.echo(b"x" * 5_000)
            await one.until(lambda: one.calls() == 1)
            one.break_streams()
            await two.until(lambda: two.calls() == 1)
            large, small = digits.big(b"y" * 2_000), digits.echo(b"s")
            await two.until(lambda: two.calls() == 2)
            assert [list(batch.sizes) for batch in two.batches] == [[5_000], [1]]
            two.release()
            assert list(map(len, await asyncio.gather(before, large, small))) == [5_000, 2_000, 1]
    assert not one.breaches + two.breaches


async def test_a_wider_window_is_used_at_once(router: FakeRouter, echo: slotmesh.Method[bytes]) -> None:
    calls = [echo(b"x") for _ in range(30)]
    await router.until(lambda: router.calls() == 10)
    router.set_window(20, 1_000)
    await router.until(lambda: router.calls() == 20)
    router.release()
    assert await asyncio.gather(*calls) == [b"x"] * 30


async def test_a_narrower_window_breaks_nothing(router: FakeRouter, echo: slotmesh.Method[bytes]) -> None:
    calls = [echo(b"%d" % number) for number in range(30)]
    await router.until(lambda: router.calls() == 10)
    router.set_window(2, 1_000)
    (stream, batch), *_ = router.waiting
    router.waiting.clear()
    ids, payloads = list(batch.ids), batch.payloads
    stream.answer_ids(ids[:8], payloads[:8], OCTET_STREAM)
    assert await asyncio.gather(*calls[:8]) == payloads[:8]
    assert router.calls() == 10, "eight answers leave two unanswered, which is the window"
    stream.answer_ids(ids[8:9], payloads[8:9], OCTET_STREAM)
    await router.until(lambda: router.calls() == 11)
    stream.answer_ids(ids[9:], payloads[9:], OCTET_STREAM)
    router.release()
    assert await asyncio.gather(*calls) == [b"%d" % number for number in range(30)]
