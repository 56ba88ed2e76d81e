"""What the controller hears of load: from replicas all that takes permits, from routers what travels through them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

import pytest

import slotmesh
import slotmesh.testing
from slotmesh.runtime.channels import open_channel
from slotmesh.testing import Backend, RunningMesh
from slotmesh.v1 import controller_service_pb2 as pb
from slotmesh.v1 import controller_service_pb2_grpc, mesh_pb2
from tests.support.controllers import eventually

pytestmark = pytest.mark.asyncio

LoadT = TypeVar("LoadT")


class Waiting:
    def __init__(self) -> None:
        self.go_on = asyncio.Event()

    async def wait(self) -> str:
        await self.go_on.wait()
        return "done"


async def load_of(mesh: RunningMesh, is_right: Callable[[mesh_pb2.ReplicaLoad], bool]) -> mesh_pb2.ReplicaLoad:
    """What the controller says of the only replica, as soon as it is right."""
    async with open_channel(mesh.controller_address) as channel:
        stub = controller_service_pb2_grpc.ControllerServiceStub(channel)

        async def ask() -> mesh_pb2.ReplicaLoad | None:
            (replica,) = (await stub.ListReplicas(pb.ListReplicasRequest())).replicas
            return replica.load if is_right(replica.load) else None

        return _told(await eventually(ask, what="the load of the replica is right"))


async def at_routers(mesh: RunningMesh, is_right: Callable[[mesh_pb2.BackendLoad], bool]) -> mesh_pb2.BackendLoad:
    """What the only router says of the only backend, likewise."""
    async with open_channel(mesh.controller_address) as channel:
        stub = controller_service_pb2_grpc.ControllerServiceStub(channel)

        async def ask() -> mesh_pb2.BackendLoad | None:
            (router,) = (await stub.ListRouters(pb.ListRoutersRequest())).routers
            return next(filter(is_right, router.loads), None)

        return _told(await eventually(ask, what="the load at the router is right"))


def _told(load: LoadT | None) -> LoadT:
    assert load is not None
    return load


async def test_calls_slots_and_what_waits_are_told_with_their_time() -> None:
    async with slotmesh.testing.mesh({"w": Backend(Waiting, max_ongoing=3)}) as mesh:
        endpoint, (instance,) = mesh.endpoint("w"), mesh.instances("w")
        idle = await load_of(mesh, lambda load: load.sample_time.seconds > 0)
        assert (idle.ongoing, idle.slots, idle.waiting) == (0, 0, 0)
        assert abs(idle.sample_time.ToMicroseconds() / 1e6 - time.time()) < 600
        plain = endpoint.wait()
        async with endpoint.reserve() as slot:
            await load_of(mesh, lambda load: (load.ongoing, load.slots) == (2, 1))
            used = asyncio.ensure_future(slot.wait())
            await load_of(mesh, lambda load: (load.ongoing, load.slots) == (2, 0))
            both = await at_routers(mesh, lambda load: load.ongoing == 2)
            assert both.slot_calls == 1
            assert both.sample_time.seconds > 0
            async with endpoint.direct() as lanes:
                direct = lanes.wait()
                held = await load_of(mesh, lambda load: load.ongoing == 3)
                assert held.slots <= 1
                waiting = endpoint.ordered("k").wait()
                await load_of(mesh, lambda load: load.ongoing + load.waiting >= 4)
                instance.go_on.set()
                assert list(await asyncio.gather(plain, used, direct, waiting)) == ["done"] * 4
        await load_of(mesh, lambda load: (load.ongoing, load.slots, load.waiting) == (0, 0, 0))
        await at_routers(mesh, lambda load: (load.ongoing, load.slot_calls) == (0, 0))
