"""Zones of replicas, as routers and operators get them from a real controller."""

from __future__ import annotations

import pytest

from tests.contract.controller.digits_backend import DIGITS
from tests.support.controllers import Controlled, running_controller
from tests.support.fakes.members import FakeReplica, FakeRouter
from tests.support.wait import wait_until

pytestmark = pytest.mark.asyncio


def ready_in(mesh: Controlled, replica_id: str, zone: str) -> FakeReplica:
    replica = FakeReplica(mesh.channel, "v1", replica_id)
    replica.zone = zone
    return replica


async def test_routers_and_operators_get_the_zone_of_each_replica() -> None:
    async with running_controller() as mesh:
        await mesh.apply(DIGITS % 2)
        async with (
            ready_in(mesh, "a", "rack-7") as a,
            ready_in(mesh, "b", "") as b,
            ready_in(mesh, "c", "no zone\n") as c,
            FakeRouter(mesh.channel, "r") as router,
        ):
            for each in (a, b, c):
                await each.report("READY")

            def zones() -> dict[str, str]:
                backends = router.tables[-1].backends if router.tables else ()
                return {it.replica_id: it.zone for each in backends for it in each.replicas}

            await wait_until(lambda: zones() == {"a": "rack-7", "b": "", "c": ""}, what="zones in the table")
            assert {name: it.zone for name, it in (await mesh.replicas()).items()} == {"a": "rack-7", "b": "", "c": ""}
