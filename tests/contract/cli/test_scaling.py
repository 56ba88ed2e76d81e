"""Scaling while others change the configuration: read, changed, written again; given up after so many times."""

from __future__ import annotations

from typing import Any

import grpc
import pytest

from slotmesh.cli.changing import ATTEMPTS, set_num_replicas
from slotmesh.errors import Reason
from slotmesh.status import from_rpc_error
from slotmesh.v1 import controller_service_pb2 as pb
from slotmesh.v1 import mesh_pb2
from tests.support.controllers import Controlled, running_controller

pytestmark = pytest.mark.asyncio


class Rivals:
    """The stub of an operator; somebody else is faster `times` times."""

    def __init__(self, mesh: Controlled, times: int) -> None:
        self._mesh = mesh
        self._remaining = times
        self.reads = 0

    async def GetBackend(self, request: Any, **_: Any) -> Any:
        self.reads += 1
        return await self._mesh.operator.GetBackend(request)

    async def ApplyBackend(self, request: Any, **_: Any) -> Any:
        if self._remaining:
            self._remaining -= 1
            await self._mesh.apply(f'backends: {{v1: {{handler: "app:One", max_ongoing: {self._remaining + 1}}}}}')
        return await self._mesh.operator.ApplyBackend(request)


async def test_what_others_change_meanwhile_stays() -> None:
    async with running_controller() as mesh:
        await mesh.apply('backends: {v1: {handler: "app:One", num_replicas: 2}}')
        rivals = Rivals(mesh, times=3)
        applied = await set_num_replicas(rivals, "v1", 5, dry_run=False)
        backend = mesh.controller.store.read().backends["v1"]
        assert (rivals.reads, backend.num_replicas, backend.max_ongoing) == (4, 5, 1)
        assert applied.revision == mesh.controller.store.read().configured_at


async def test_it_is_given_up_when_others_are_always_faster() -> None:
    async with running_controller() as mesh:
        await mesh.apply('backends: {v1: {handler: "app:One"}}')
        rivals = Rivals(mesh, times=ATTEMPTS)
        with pytest.raises(grpc.RpcError) as refused:
            await set_num_replicas(rivals, "v1", 5, dry_run=False)
        assert rivals.reads == ATTEMPTS
        assert from_rpc_error(refused.value).reason is Reason.REVISION_CONFLICT


async def test_settings_of_a_newer_controller_stay() -> None:
    newer = mesh_pb2.Backend(name="v1", num_replicas=1)
    newer.MergeFromString(b"\xf2\x3f\x01x")  # field 1022, a text

    class Newer:
        async def GetBackend(self, *_: Any, **__: Any) -> pb.GetBackendResponse:
            return pb.GetBackendResponse(backend=newer, revision=3)

        async def ApplyBackend(self, request: pb.ApplyBackendRequest, **_: Any) -> pb.ApplyBackendResponse:
            assert request.expected_revision == 3
            assert b"\xf2\x3f\x01x" in request.backend.SerializeToString()
            return pb.ApplyBackendResponse(revision=4)

    assert (await set_num_replicas(Newer(), "v1", 2, dry_run=False)).revision == 4
