"""Scaling while others change the configuration: read, changed, written again; given up after so many times."""

from __future__ import annotations

from typing import Any

import pytest

from slotmesh.cli.commands.scale import ATTEMPTS, set_num_replicas
from slotmesh.cli.controller_connection import ControllerConnection
from slotmesh.cli.operator import Operator
from slotmesh.errors import Reason, SlotmeshError
from slotmesh.v1 import controller_service_pb2 as pb
from slotmesh.v1 import mesh_pb2
from tests.support.controllers import Controlled, running_controller

pytestmark = pytest.mark.asyncio


class Rivalled(Operator):
    """Another client is faster `times` times."""

    def __init__(self, connection: ControllerConnection, mesh: Controlled, times: int) -> None:
        super().__init__(connection)
        self._mesh = mesh
        self._remaining = times
        self.reads = 0

    async def send(self, request: Any, timeout_s: float = 10.0) -> Any:
        self.reads += isinstance(request, pb.GetBackendRequest)
        if isinstance(request, pb.ApplyBackendRequest) and self._remaining:
            self._remaining -= 1
            await self._mesh.apply(f'backends: {{v1: {{handler: "app:One", max_ongoing: {self._remaining + 1}}}}}')
        return await super().send(request, timeout_s)


async def test_what_others_change_meanwhile_stays() -> None:
    async with running_controller() as mesh:
        await mesh.apply('backends: {v1: {handler: "app:One", num_replicas: 2}}')
        async with ControllerConnection.open([mesh.controller.address]) as connection:
            rivals = Rivalled(connection, mesh, times=3)
            applied = await set_num_replicas(rivals, "v1", 5, dry_run=False)
        backend = mesh.controller.store.read().backends["v1"]
        assert (rivals.reads, backend.num_replicas, backend.max_ongoing) == (4, 5, 1)
        assert applied.revision == mesh.controller.store.read().configured_at


async def test_it_is_given_up_when_others_are_always_faster() -> None:
    async with running_controller() as mesh:
        await mesh.apply('backends: {v1: {handler: "app:One"}}')
        async with ControllerConnection.open([mesh.controller.address]) as connection:
            rivals = Rivalled(connection, mesh, times=ATTEMPTS)
            with pytest.raises(SlotmeshError) as refused:
                await set_num_replicas(rivals, "v1", 5, dry_run=False)
        assert rivals.reads == ATTEMPTS
        assert refused.value.reason is Reason.REVISION_CONFLICT


async def test_settings_of_a_newer_controller_stay() -> None:
    newer = mesh_pb2.Backend(name="v1", num_replicas=1)
    newer.MergeFromString(b"\xf2\x3f\x01x")  # field 1022, a text

    class Newer(Operator):
        async def send(self, request: Any, timeout_s: float = 10.0) -> Any:
            if isinstance(request, pb.GetBackendRequest):
                return pb.GetBackendResponse(backend=newer, revision=3)
            assert request.expected_revision == 3
            assert b"\xf2\x3f\x01x" in request.backend.SerializeToString()
            return pb.ApplyBackendResponse(revision=4)

    operator = Newer(ControllerConnection([]))
    assert (await set_num_replicas(operator, "v1", 2, dry_run=False)).revision == 4
