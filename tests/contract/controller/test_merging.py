"""Files that are applied again, by rpc and at the start: what the file did not change stays as it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc
import pytest

from controller_service.process_life import apply_spec
from slotmesh.convert.specification import mesh_to_wire
from slotmesh.errors import Executed, Reason
from slotmesh.spec.document import parse_mesh
from slotmesh.status import from_rpc_error
from slotmesh.v1 import controller_service_pb2 as pb
from slotmesh.v1 import mesh_pb2
from tests.support.controllers import Controlled, running_controller, violations

FILE = """
backends:
  v1: {handler: "app:One", num_replicas: 2}
  v2: {handler: "app:Two"}
endpoints:
  e: {traffic: {v1: 0.9, v2: 0.1}}
"""
SCALED = FILE.replace("num_replicas: 2", "num_replicas: 5")
ALL_V1 = {"v1": 1.0, "v2": 0.0}


async def apply(mesh: Controlled, yaml: str, **more: Any) -> pb.ApplyMeshResponse:
    request = pb.ApplyMeshRequest(mesh=mesh_to_wire(parse_mesh(yaml)), merge=True, **more)
    response: pb.ApplyMeshResponse = await mesh.operator.ApplyMesh(request)
    return response


async def set_traffic(mesh: Controlled, **weights: float) -> None:
    policy = mesh_pb2.TrafficPolicy(weights=weights)
    await mesh.operator.SetTraffic(pb.SetTrafficRequest(endpoint="e", traffic=policy))


def live(mesh: Controlled) -> tuple[int | None, dict[str, float]]:
    """Replicas of v1, and the weights."""
    desired = mesh.controller.store.read()
    policy = desired.endpoints["e"].traffic
    assert policy is not None
    return desired.backends["v1"].num_replicas, dict(policy.weights)


@pytest.mark.asyncio
@pytest.mark.parametrize("restarts", [False, True])
async def test_scaling_does_not_undo_a_rollback_of_the_traffic(tmp_path: Path, restarts: bool) -> None:
    state = tmp_path / "state"
    async with running_controller(state=state) as mesh:
        await apply(mesh, FILE)
        await set_traffic(mesh, **ALL_V1)
        if not restarts:
            scaled = await apply(mesh, SCALED)
            assert [(it.resource, it.field, it.before, it.after) for it in scaled.fields] == [
                ("backend/v1", "num_replicas", "2", "5")
            ]
            assert live(mesh) == (5, ALL_V1)
            return
    async with running_controller(state=state) as mesh:
        await apply(mesh, SCALED)
        assert live(mesh) == (5, ALL_V1)


@pytest.mark.asyncio
async def test_a_conflict_changes_nothing_unless_it_is_forced() -> None:
    async with running_controller() as mesh:
        await apply(mesh, FILE)
        await set_traffic(mesh, **ALL_V1)
        changed = SCALED.replace("{v1: 0.9, v2: 0.1}", "{v1: 0.5, v2: 0.5}")
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await apply(mesh, changed)
        failure = from_rpc_error(refused.value)
        assert (failure.reason, failure.executed) == (Reason.APPLY_CONFLICT, Executed.NO)
        assert refused.value.code() is grpc.StatusCode.ABORTED
        assert "endpoint/e: traffic: is {v1: 1, v2: 0}, was {v1: 0.9, v2: 0.1} when" in failure.message
        assert live(mesh) == (2, ALL_V1)
        planned = await apply(mesh, changed, validate_only=True)
        assert [(it.resource, it.field, it.applied, it.live, it.wanted) for it in planned.conflicts] == [
            ("endpoint/e", "traffic", "{v1: 0.9, v2: 0.1}", "{v1: 1, v2: 0}", "{v1: 0.5, v2: 0.5}")
        ]
        forced = await apply(mesh, changed, force=True)
        assert {it.field for it in forced.fields} == {"num_replicas", "traffic"}
        assert live(mesh) == (5, {"v1": 0.5, "v2": 0.5})


@pytest.mark.asyncio
async def test_the_next_file_is_compared_with_the_one_before_also_where_that_changed_nothing() -> None:
    async with running_controller() as mesh:
        await apply(mesh, FILE)
        await set_traffic(mesh, **ALL_V1)
        same = await apply(mesh, FILE.replace("{v1: 0.9, v2: 0.1}", "{v1: 1.0, v2: 0.0}"))
        assert list(same.fields) == []
        back = await apply(mesh, FILE)
        assert [it.field for it in back.fields] == ["traffic"]
        assert live(mesh) == (2, {"v1": 0.9, "v2": 0.1})


@pytest.mark.asyncio
async def test_force_without_merge_is_a_mistake() -> None:
    async with running_controller() as mesh:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await mesh.operator.ApplyMesh(pb.ApplyMeshRequest(mesh=mesh_pb2.Mesh(), force=True))
        assert "merge" in violations(refused.value)["force"]


@pytest.mark.asyncio
async def test_a_spec_at_the_start_changes_what_it_has_changed_and_says_what_it_leaves(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    spec, state = tmp_path / "mesh.yaml", tmp_path / "state"
    spec.write_text(FILE)
    async with running_controller(state=state) as mesh:
        await apply_spec(spec, mesh.controller.configurator)
        await set_traffic(mesh, **ALL_V1)
    async with running_controller(state=state) as mesh:
        await apply_spec(spec, mesh.controller.configurator)
        assert live(mesh) == (2, ALL_V1)
        assert not caplog.records or "--spec says" not in caplog.text
    spec.write_text(SCALED.replace("{v1: 0.9, v2: 0.1}", "{v1: 0.5, v2: 0.5}"))
    for is_changed in (True, False):
        caplog.clear()
        async with running_controller(state=state) as mesh:
            await apply_spec(spec, mesh.controller.configurator)
            assert live(mesh) == (5, ALL_V1)
            assert ("--spec contradicts an operator's change" in caplog.text) is is_changed
