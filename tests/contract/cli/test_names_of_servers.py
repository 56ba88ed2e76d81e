"""Commands that are given servers by name: each address of it counts, and a name that does not resolve has a reason."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from typer.testing import CliRunner

from slotmesh.cli.app import app
from slotmesh.cli.connection import leader_among
from slotmesh.cli.console import CommandFailed
from slotmesh.cli.operator import Operator
from tests.contract.client.test_found_by_name import three
from tests.support.fakes.name_server import NameServer
from tests.support.standing_by import LivingController

pytestmark = pytest.mark.asyncio

NAME = "controllers.mesh.svc"


async def test_the_leader_is_found_among_all_addresses_of_the_name(tmp_path: Path) -> None:
    state = tmp_path / "state"
    async with NameServer() as names, LivingController(state, host="127.0.0.2", insecure=True) as leader:
        await leader.leads()
        port = int(leader.address.rpartition(":")[2])
        async with LivingController(state, host="127.0.0.3", port=port, insecure=True) as standby:
            await leader.leads(standby.address)
            names.records[NAME] = ["127.0.0.3", "127.0.0.2"]
            target = names.target(NAME, port)
            assert await leader_among([target]) == leader.address
            assert await leader_among([standby.address, target]) == leader.address
            async with Operator.at(target) as operator:
                assert (await operator.standing()).role.leads


async def test_a_name_that_does_not_resolve_fails_at_once_with_the_reason(tmp_path: Path) -> None:
    async with NameServer() as names, LivingController(tmp_path / "state") as leader:
        await leader.leads()
        target = names.target(NAME, 7070)
        with pytest.raises(CommandFailed) as failed:
            await leader_among([target])
        assert str(failed.value).startswith(f"{target} does not resolve: The DNS query name does not exist")
        assert str(failed.value).endswith("correct the name, or name a controller with --address HOST:PORT")
        assert await leader_among([target, leader.address]) == leader.address, "another one is known"


async def test_a_command_calls_whichever_router_of_the_name_answers() -> None:
    async with three() as routers, NameServer() as names:
        await routers[0].stop()
        names.records["routers.mesh.svc"] = [it.host for it in routers]
        target = names.target("routers.mesh.svc", int(routers[0].address.rpartition(":")[2]))
        flags = ["call", "e", "m", '["x"]', "--address", target]
        ran = await asyncio.to_thread(CliRunner().invoke, app, flags)
        assert ran.exit_code == 0, ran.output
        assert routers[1].unary + routers[2].unary == 1
