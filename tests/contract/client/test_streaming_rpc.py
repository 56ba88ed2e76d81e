"""Values of a handler that yields, by an rpc of their own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable

import pytest
import pytest_asyncio

import slotmesh
from slotmesh.client.calls.values import RpcValues
from slotmesh.codec import OCTET_STREAM
from slotmesh.errors import Failure
from tests.contract.client.test_streaming import last_failure
from tests.contract.client.value_streams import failure_of
from tests.support.fakes.counting import count, counted
from tests.support.fakes.router import FakeRouter

pytestmark = pytest.mark.asyncio


@pytest_asyncio.fixture
async def router() -> AsyncIterator[FakeRouter]:
    async with FakeRouter(yields=count) as router:
        yield router
    assert not router.breaches


@pytest_asyncio.fixture
async def digits(router: FakeRouter) -> AsyncIterator[slotmesh.Endpoint]:
    async with slotmesh.connect(router.address, close_grace=5) as mesh:
        yield mesh.endpoint("digits").options(content_type=OCTET_STREAM)


async def test_values_by_an_rpc(router: FakeRouter, digits: slotmesh.Endpoint) -> None:
    assert [value async for value in digits.count.unary_stream(b"2000")] == counted(2_000)
    values = digits.count.unary_stream(b"2!")
    assert [await anext(values), await anext(values)] == counted(2)
    failure = await failure_of(values)
    assert isinstance(failure, slotmesh.HandlerError)
    assert (failure.endpoint, failure.method) == ("digits", "count")
    assert [value async for value in values] == []
    assert not router.opened
    with pytest.raises(TypeError, match="without a reply"):
        digits.options(reply=False).count.unary_stream(b"1")


async def test_leaving_the_values_of_an_rpc_cancels_it(router: FakeRouter, digits: slotmesh.Endpoint) -> None:
    async for _ in digits.count.unary_stream(b"1000000"):
        break
    await router.until(lambda: not router.rpcs)
    values = digits.count.unary_stream(b"1000000")
    await anext(values)
    assert router.rpcs == 1
    await values.aclose()
    await router.until(lambda: not router.rpcs)
    assert [value async for value in values] == []


async def test_an_rpc_of_a_mesh_that_is_closed_fails(router: FakeRouter, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client cancels it: some versions of gRPC cancel only rpcs that are being read."""
    held = asyncio.Event()
    cancelled: list[RpcValues] = []
    cancel = RpcValues.cancel_rpc

    def noted(values: RpcValues) -> None:
        cancelled.append(values)
        cancel(values)

    monkeypatch.setattr(RpcValues, "cancel_rpc", noted)

    def endless(_: bytes) -> Iterable[bytes | Failure]:
        while not held.is_set():
            yield b"x" * 65_536

    router.yields = endless
    mesh = slotmesh.connect(router.address)
    values = mesh.endpoint("digits").options(content_type=OCTET_STREAM).count.unary_stream(b"")
    await anext(values)
    await mesh.aclose()
    failure = await last_failure(values)
    assert isinstance(failure, slotmesh.CallCancelled)
    assert failure.executed is slotmesh.Executed.YES
    assert len(cancelled) == 1
    held.set()
