"""Scaling while others change the configuration: nothing but the number of replicas is written."""

from __future__ import annotations

from typing import Any

import pytest

from slotmesh.cli.commands.scale import set_num_replicas
from slotmesh.cli.operator import Operator
from slotmesh.v1 import controller_service_pb2 as pb
from tests.support.controllers import Controlled, running_controller

pytestmark = pytest.mark.asyncio


class Rivalled(Operator):
    """Another client is faster `times` times."""

    mesh: Controlled
    times = 1

    async def send(self, request: Any, timeout_s: float = 10.0) -> Any:
        if isinstance(request, pb.ApplyBackendRequest) and self.times:
            self.times -= 1
            await self.mesh.apply(f'backends: {{v1: {{handler: "app:One", max_ongoing: {self.times + 1}}}}}')
        return await super().send(request, timeout_s)


async def test_what_others_change_meanwhile_stays() -> None:
    async with running_controller() as mesh:
        await mesh.apply('backends: {v1: {handler: "app:One", num_replicas: 2}}')
        async with Rivalled.at(mesh.controller.address) as operator:
            operator.mesh = mesh
            applied = await set_num_replicas(operator, "v1", 5, dry_run=False)
        backend = mesh.controller.store.read().backends["v1"]
        assert (backend.num_replicas, backend.max_ongoing) == (5, 1)
        assert applied.revision == mesh.controller.store.read().configured_at
