"""The `--spec` of a controller that stands by: looked at before, and not applied over what is stored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from slotmesh.cli.operator import Operator
from slotmesh.config import SettingsError
from slotmesh.spec.document import parse_mesh
from slotmesh.v1 import controller_service_pb2
from tests.support.controllers import eventually
from tests.support.standing_by import LivingController, leader_and_standby

pytestmark = pytest.mark.asyncio

MESH = """
backends:
  v1: {num_replicas: 1}
  v2: {num_replicas: 1}
endpoints:
  e: {traffic: {v1: 1.0}}
"""


async def test_a_standby_refuses_a_spec_that_it_could_not_apply(tmp_path: Path) -> None:
    spec = tmp_path / "mesh.yaml"
    spec.write_text("backends: {v1: {num_replica: 1}}", "utf-8")
    async with LivingController(tmp_path / "state") as leader:
        await leader.leads()
        with pytest.raises(SettingsError, match="num_replica"):
            async with LivingController(tmp_path / "state", spec=str(spec)):
                pass


async def test_a_standby_undoes_nothing_that_was_applied_since_its_spec(tmp_path: Path) -> None:
    spec = tmp_path / "mesh.yaml"
    spec.write_text(MESH, "utf-8")
    async with leader_and_standby(tmp_path / "state", spec=str(spec)) as (leader, standby):
        async with Operator.at(leader.address) as operator:
            await operator.apply_file(parse_mesh(MESH.replace("num_replicas: 1", "num_replicas: 3")))
        assert await leader.end() == 0
        await standby.leads()
        await eventually(lambda: serves(standby), what="it serves")
        backends = await standby.operator.ListBackends(controller_service_pb2.ListBackendsRequest())
        assert [it.num_replicas for it in backends.backends] == [3, 3]


async def serves(controller: LivingController) -> bool:
    """Whether it leads, and has begun."""
    health: Any = health_pb2_grpc.HealthStub(controller.channel)
    answer = await health.Check(health_pb2.HealthCheckRequest())
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


async def test_a_standby_leads_though_its_spec_has_become_wrong(tmp_path: Path) -> None:
    spec = tmp_path / "mesh.yaml"
    spec.write_text(MESH, "utf-8")
    async with leader_and_standby(tmp_path / "state", spec=str(spec)) as (leader, standby):
        spec.write_text("backends: {v1: {num_replica: 1}}", "utf-8")
        assert await leader.end() == 0
        await standby.leads()
        await eventually(lambda: serves(standby), what="it serves")
        endpoints = await standby.operator.ListEndpoints(controller_service_pb2.ListEndpointsRequest())
        assert [it.name for it in endpoints.endpoints] == ["e"]
