"""A handler that blocks its event loop: which calls are held up, and which are not."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

import slotmesh
from slotmesh.runtime.channels import open_channel
from slotmesh.v1 import mesh_pb2
from tests.support.mesh import MeshRun, started_mesh
from tests.support.metrics import scraped
from tests.support.shell import slotmesh as command_line

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(90)]

HANDLERS = "tests.e2e.blocking_handlers"
BLOCK_S = 5.0
"""More than the silence after which routers give up a link."""
SHORT_S = 1.0
"""More than a handler may take before it is reported."""
LOOK_S = 0.15
"""By so much less is told: somebody looks several times in that time."""
PROMPT_S = 2.0
"""What an answer may take on a busy machine, while the loop is blocked for longer."""
GAP_S = 0.05
"""Between two questions."""


async def test_a_handler_with_a_loop_of_its_own_blocks_nobody_else() -> None:
    async with (
        started_mesh(f"{HANDLERS}:Isolated", routers=2) as mesh,
        slotmesh.connect(mesh.router_addresses[0]) as client,
        slotmesh.connect(mesh.router_addresses[1]) as other,
    ):
        isolated, beside = client.endpoint("Isolated"), other.endpoint("Isolated")
        assert await isolated.places() == ["handler-loop", "handler-loop"]
        assert await beside.thread(0) == 0
        replica = await only_replica(mesh)
        blocked = isolated.block(BLOCK_S)
        behind = beside.places()
        asked = 0
        warnings: set[str] = set()
        async with open_channel(replica.address) as channel:
            health: Any = health_pb2_grpc.HealthStub(channel)
            while not blocked.done():
                async with asyncio.timeout(PROMPT_S):
                    answer = await health.Check(health_pb2.HealthCheckRequest())
                    assert answer.status == health_pb2.HealthCheckResponse.SERVING
                    assert await beside.thread(asked) == asked
                    assert await isolated.thread(asked) == asked
                    warnings.add((await only_replica(mesh)).warning.partition("\n")[0])
                asked += 1
                await asyncio.sleep(GAP_S)
        assert await blocked == BLOCK_S
        assert await behind == ["handler-loop", "handler-loop"]
        assert asked > BLOCK_S / PROMPT_S
        assert any(
            warning.startswith("block blocks the event loop since ")
            and warning.endswith("; the handler's other calls wait")
            for warning in warnings
        ), warnings
        for router in (await mesh.members()).routers:
            metrics = await scraped(router.metrics_address)
            assert metrics.total("slotmesh_router_link_failures_total") == 0


@pytest.mark.long
async def test_a_handler_that_blocks_the_replica_is_reported_and_can_be_given_a_loop(tmp_path: Path) -> None:
    async with started_mesh(f"{HANDLERS}:Blocker") as mesh, slotmesh.connect(mesh.router_address) as client:
        blocker = client.endpoint("Blocker")
        places = await blocker.places()
        assert places[0] == "constructor"
        assert await blocker.block(SHORT_S) == SHORT_S
        replica = await reported(mesh, "block blocked the event loop for ")
        assert "time.sleep(seconds)" in replica.warning
        metrics = await scraped(replica.metrics_address)
        assert metrics.total("slotmesh_replica_loop_blocks_total") == 1
        assert SHORT_S - LOOK_S <= metrics.total("slotmesh_replica_loop_blocked_time_seconds_total") < 2 * SHORT_S
        assert mesh.log_text().count("the event loop is blocked") == 1
        assert "everything else in this replica waits" in mesh.log_text()

        env = {"SLOTMESH_ADDRESS": mesh.controller_address}
        told = (await command_line("status", env=env)).out
        assert told.count("block blocked the event loop for ") == 2  # in the table, and with its stack below
        assert "time.sleep(seconds)" in told
        document = json.loads((await command_line("status", "--json", env=env)).out)
        assert document["replicas"][0]["warning"] == replica.warning

        spec = tmp_path / "mesh.yaml"
        spec.write_text(f"backends: {{Blocker: {{handler: '{HANDLERS}:Blocker', num_replicas: 1, own_loop: true}}}}\n")
        assert (await command_line("apply", str(spec), env=env)).status == 0
        await mesh.wait_for_replicas(1, without=replica.replica_id)
        assert await blocker.places() == ["handler-loop", "handler-loop"]


async def only_replica(mesh: MeshRun) -> mesh_pb2.Replica:
    (replica,) = (await mesh.members()).replicas
    return replica


async def reported(mesh: MeshRun, warning: str) -> mesh_pb2.Replica:
    """The replica, once it warns of this."""
    deadline = time.monotonic() + 10.0
    while not (replica := await only_replica(mesh)).warning.startswith(warning):
        assert time.monotonic() < deadline, replica
        await asyncio.sleep(GAP_S)
    return replica
