"""`slotmesh run --state`: a mesh that is stopped and started again is what it was."""

from __future__ import annotations

from pathlib import Path

import pytest

from slotmesh.cli.operator import Operator
from slotmesh.convert.specification import traffic_from_wire
from slotmesh.spec.model import Backend, Endpoint, Mesh, TrafficPolicy
from tests.support.controllers import eventually
from tests.support.mesh import started_mesh

pytestmark = pytest.mark.long

HANDLER = "tests.e2e.handlers:Whoami"
POLICY = TrafficPolicy(weights={"Whoami": 0.25, "other": 0.75})


@pytest.mark.asyncio
async def test_what_was_changed_is_in_force_again(tmp_path: Path) -> None:
    flags = [f"--state={tmp_path / 'mesh.state'}"]
    async with started_mesh(HANDLER, replicas=2, flags=flags) as mesh:
        async with Operator.at(mesh.controller_address) as operator:
            other = Backend(name="other", handler=HANDLER, num_replicas=1)
            await operator.apply(Mesh(backends=(other,), endpoints=(Endpoint(name="Whoami", traffic=POLICY),)))

            async def has_moved() -> bool:
                return traffic_from_wire((await operator.endpoint("Whoami")).traffic) == POLICY

            await eventually(has_moved, what="traffic moves once the new backend is ready", timeout=60.0)
        await mesh.wait_for_replicas(3)
        before = await mesh.members()
        await mesh.kill_replica()
        await mesh.wait_for_replicas(3)
    async with started_mesh(HANDLER, replicas=3, flags=flags) as mesh:
        pids = await mesh.wait_for_replicas(4)
        async with Operator.at(mesh.controller_address) as operator:
            assert traffic_from_wire((await operator.endpoint("Whoami")).traffic) == POLICY
            backends = {it.name: it.num_replicas for it in (await operator.snapshot()).backends}
        assert backends == {"Whoami": 3, "other": 1}
        after = await mesh.members()
        assert (after.generation, after.table_revision > before.table_revision) == (before.generation, True)
        assert pids.keys().isdisjoint(it.replica_id for it in before.replicas), "their processes have ended"
