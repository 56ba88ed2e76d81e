"""A client that is used without an event loop points to the one that needs none."""

from __future__ import annotations

import re

import pytest

import slotmesh

WAY_OUT = "without asyncio use slotmesh.connect_sync, whose calls block"


def test_an_endpoint_outside_a_loop_points_to_connect_sync() -> None:
    mesh = slotmesh.connect("127.0.0.1:1")
    told = "no event loop runs here: calls of slotmesh.connect are made in an `async def`, as asyncio.run runs one; "
    with pytest.raises(RuntimeError, match=f"^{re.escape(told + WAY_OUT)}$"):
        mesh.endpoint("digits")
    with pytest.raises(RuntimeError, match=re.escape(WAY_OUT)):
        mesh.reserve_all("digits")


def test_with_in_place_of_async_with_points_to_connect_sync() -> None:
    told = f"`async with` is for what slotmesh.connect gives; {WAY_OUT}"
    with pytest.raises(TypeError, match=f"^{re.escape(told)}$"), slotmesh.connect("127.0.0.1:1"):
        pass
