"""Commands whose controller stands by: which leader gets their requests."""

from __future__ import annotations

from pathlib import Path

import pytest

from controller_service.store.protocol import Leader
from slotmesh.cli.operator import Operator
from slotmesh.errors import NotLeader
from slotmesh.spec.document import parse_mesh
from tests.support.standing_by import LivingController, leader_and_standby

pytestmark = pytest.mark.asyncio

MESH = parse_mesh("backends:\n  v1: {num_replicas: 1}\n")


async def test_the_leader_of_another_mesh_gets_no_request(tmp_path: Path) -> None:
    """As seen from where the command runs, the address that a standby names may be another controller's."""
    async with leader_and_standby(tmp_path / "state") as (leader, standby), LivingController(tmp_path / "o") as other:
        await other.leads()
        standby.life.front.leader = lambda: Leader(other.address, "the controller elsewhere")
        async with Operator.at(standby.address) as operator:
            with pytest.raises(NotLeader, match="the controller elsewhere leads"):
                await operator.apply(MESH)
            with pytest.raises(NotLeader):
                await operator.configuration()
        for it in (leader, other):
            async with Operator.at(it.address) as operator:
                assert not (await operator.configuration()).backends


async def test_the_leader_of_this_mesh_gets_it(tmp_path: Path) -> None:
    async with leader_and_standby(tmp_path / "state") as (leader, standby):
        async with Operator.at(standby.address) as operator:
            await operator.apply(MESH)
        async with Operator.at(leader.address) as operator:
            assert [it.name for it in (await operator.configuration()).backends] == ["v1"]


async def test_a_change_that_has_gone_on_to_a_leader_on_hold_reports_that(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with leader_and_standby(tmp_path / "state") as (leader, standby):
        leadership = leader.life.front.leadership
        assert leadership is not None
        assert leadership.newer is not None
        leadership.newer.found("router/r", "holds revision 15")
        async with Operator.at(standby.address) as operator:
            await operator.apply(MESH)
    assert "the controller is on hold: the change is stored" in capsys.readouterr().err
