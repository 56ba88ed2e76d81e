"""The client keeps to the router's window, whatever it becomes. The fake router notes every breach."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

import slotmesh
from slotmesh.codec import OCTET_STREAM
from tests.fakes.router import FakeRouter

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


async def test_a_call_larger_than_the_window_goes_alone(router: FakeRouter, echo: slotmesh.Method[bytes]) -> None:
    calls = [echo(b"s"), echo(b"x" * 5_000), echo(b"a")]
    await router.until(lambda: router.calls() == 1)
    router.release()
    assert await asyncio.gather(*calls) == [b"s", b"x" * 5_000, b"a"]
    assert [len(batch.payloads) for batch in router.batches] == [1, 1, 1]


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
