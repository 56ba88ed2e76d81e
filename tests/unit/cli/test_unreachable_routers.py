"""A router at an address that the controller listed and that is not reached: the flag that names another one works."""

from __future__ import annotations

import asyncio

import pytest

from slotmesh.cli.commands.calls import list_calls
from slotmesh.cli.commands.tap import TappedRouters
from slotmesh.cli.console import CommandFailed
from slotmesh.v1 import tap_service_pb2 as pb
from tests.support.wait import within

pytestmark = pytest.mark.asyncio
NOWHERE = "127.0.0.1:1"


def has_way_out(text: str) -> bool:
    """`--address` names the controller in these commands."""
    return f"no router answers at {NOWHERE}" in text and "--router HOST:PORT" in text and "--address" not in text


async def test_of_calls() -> None:
    with pytest.raises(CommandFailed) as failed:
        await list_calls(pb.ListCallsRequest(), [NOWHERE], limit=1)
    assert has_way_out(str(failed.value)), failed.value


async def test_of_tap() -> None:
    async def routers() -> list[str]:
        return [NOWHERE]

    taps = TappedRouters(pb.TapCallsRequest(endpoint="e"), routers, lambda _: None)
    with pytest.raises(CommandFailed) as failed:
        await within(asyncio.ensure_future(anext(taps.responses())), "the refusal")
    assert has_way_out(str(failed.value)), failed.value
