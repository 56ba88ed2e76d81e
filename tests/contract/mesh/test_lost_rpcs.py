"""Calls by rpcs of their own whose router dies: the message names the router, and what is known of the call."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import slotmesh
from slotmesh import Executed
from slotmesh.testing import mesh
from tests.support.wait import within

pytestmark = pytest.mark.asyncio


class Slow:
    def __init__(self) -> None:
        self.started = asyncio.Event()

    async def work(self) -> None:
        self.started.set()
        await asyncio.Event().wait()


CALLS: dict[str, Callable[[slotmesh.Endpoint], Awaitable[Any]]] = {
    "unary": lambda slow: slow.work.unary(),
    "streamed": lambda slow: anext(slow.work.unary_stream()),
    "broadcast": lambda slow: slow.broadcast.work(),
}


@pytest.mark.parametrize("kind", CALLS)
async def test_a_call_whose_router_dies_names_it(kind: str) -> None:
    async with mesh({"slow": Slow}) as running, slotmesh.connect(running.router_addresses) as client:
        call = asyncio.ensure_future(CALLS[kind](client.endpoint("slow")))
        await within(running.instances("slow")[0].started.wait(), "the call runs")
        await running.kill_router(address := running.router_addresses[0])
        (error,) = await within(_errors(call), "the failure")
        assert isinstance(error, slotmesh.RouterLost)
        assert error.executed is Executed.UNKNOWN
        text = f"the connection to the router at {address} was lost before it had reported the outcome ("
        assert str(error).startswith(f"UNAVAILABLE/ROUTER_LOST: {text}")
        assert str(error).endswith("); it may have been executed")


async def _errors(call: Awaitable[Any]) -> list[Exception]:
    """What a call has raised, or what it has of the replicas."""
    try:
        return list((await call).failed.values())
    except slotmesh.SlotmeshError as error:
        return [error]
