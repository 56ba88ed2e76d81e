"""A start that cannot be tried now is no failure, and operators see why replicas are missing."""

from __future__ import annotations

import io

import pytest

from slotmesh.cli.commands.describe import print_backend
from slotmesh.cli.commands.status import print_tables, status_document
from slotmesh.cli.controller_view import Snapshot
from slotmesh.cli.operator import Operator
from slotmesh.v1 import controller_service_pb2 as pb
from tests.support.controllers import Controlled, eventually, running_controller
from tests.support.shell import slotmesh

pytestmark = pytest.mark.asyncio

MESH = "backends: {v1: {handler: 'app:One', num_replicas: %d}}"
AWAY = "no pod is started: the API server of Kubernetes does not answer: ConnectError"
SHOWN = f"missing replicas of v1 cannot be started now, and it is tried again: {AWAY}"


async def shown(mesh: Controlled) -> str:
    """What `slotmesh status` and `slotmesh describe` print, in one line."""
    out = io.StringIO()
    async with Operator.at(mesh.controller.address) as operator:

        async def same() -> tuple[()] | tuple[Snapshot, pb.GetBackendResponse]:
            """Both, once they state the same: it may change between the two queries."""
            snapshot = await operator.snapshot()
            described = await operator.send(pb.GetBackendRequest(name="v1"))
            (document,) = status_document("here", snapshot)["backends"]
            is_same = document["deferred_start"] == described.backend.status.deferred_start
            return (snapshot, described) if is_same else ()

        found = await eventually(same, what="the same reason in both")
    assert found
    snapshot, described = found
    print_tables("here", snapshot, out)
    print_backend(described, (), out)
    return " ".join(out.getvalue().split())


async def test_a_deferred_start_is_shown_until_the_replicas_were_started() -> None:
    async with running_controller(launches=True) as mesh:
        assert mesh.launcher is not None
        mesh.launcher.deferral = AWAY
        await mesh.apply(MESH % 2)

        async def deferred() -> bool:
            return (await shown(mesh)).count(SHOWN) == 2

        await eventually(deferred, what="why they are missing")
        got = await slotmesh("get", env={"SLOTMESH_CONTROLLER": mesh.controller.address})
        assert (got.status, got.err) == (0, f"{SHOWN}\n")
        async with Operator.at(mesh.controller.address) as operator:
            assert (await operator.snapshot()).deferred_starts == {"v1": AWAY}
        assert await mesh.replicas() == {}, "no failure is recorded"
        mesh.launcher.deferral = ""
        mesh.controller.loop.retry_now()
        await mesh.wait_for_launches(2)

        async def over() -> bool:
            return SHOWN not in await shown(mesh)

        await eventually(over, what="its end")


async def test_a_deferred_start_that_is_not_wanted_any_more_is_not_shown() -> None:
    async with running_controller(launches=True) as mesh:
        assert mesh.launcher is not None
        mesh.launcher.deferral = AWAY
        await mesh.apply(MESH % 1)

        async def deferred() -> bool:
            return SHOWN in await shown(mesh)

        async def over() -> bool:
            return SHOWN not in await shown(mesh)

        await eventually(deferred, what="why it is missing")
        await mesh.apply(MESH % 0)
        await eventually(over, what="its end")
