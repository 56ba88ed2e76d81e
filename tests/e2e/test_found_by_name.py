"""Processes, commands and a client that find each other by a name which this system resolves."""

from __future__ import annotations

from pathlib import Path

import pytest

import slotmesh
from slotmesh.cli.operator import Operator
from tests.support.lone_controller import LoneController

pytestmark = pytest.mark.asyncio

SPEC = """
backends:
  Whoami: {handler: "tests.e2e.handlers:Whoami", num_replicas: 1, graceful_timeout: 5s}
endpoints:
  Whoami: {traffic: {Whoami: 1.0}}
"""


def by_name(address: str) -> str:
    return f"dns:///localhost:{address.rpartition(':')[2]}"


class NamedController(LoneController):
    """Its router is given a name."""

    async def start_router(self) -> None:
        flags = ["--port=0", f"--controller={by_name(self.address)}", "--router-id=router-1"]
        self.router, self.router_address = await self._spawn("router_service", flags)


async def test_a_mesh_of_names_serves(tmp_path: Path) -> None:
    (tmp_path / "mesh.yaml").write_text(SPEC, "utf-8")
    mesh = NamedController(tmp_path, [f"--spec={tmp_path / 'mesh.yaml'}"])
    try:
        await mesh.start()
        await mesh.start_router()
        pids = set((await mesh.ready(1)).values())
        async with Operator.at(by_name(mesh.address)) as operator:
            assert [it.router_id for it in (await operator.members()).routers] == ["router-1"]
        async with slotmesh.connect(by_name(mesh.router_address)) as client:
            assert {await client.endpoint("Whoami").pid(), await client.endpoint("Whoami").pid.unary()} == pids
    finally:
        await mesh.stop()
