"""examples/own_proto as its README has it: one command, and a client that knows the proto only."""

from __future__ import annotations

import asyncio

import pytest

from examples.own_proto.client import greetings
from tests.support.mesh import ROOT, started_mesh


@pytest.mark.slow
@pytest.mark.asyncio
async def test_the_client_is_greeted_as_the_readme_shows() -> None:
    flags = ("--proto", "examples/own_proto/greeter.proto")
    async with started_mesh("examples.own_proto.app:Greeter", flags=flags) as mesh:
        lines = await asyncio.to_thread(greetings, mesh.router_address)

    shown = (ROOT / "examples" / "own_proto" / "README.md").read_text("utf-8")
    assert len(lines) == 4
    assert "\n".join(lines) in shown
