"""A real replica with two permits, whose time is a fake clock's, and a stream to it; a mesh of two such replicas."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

import slotmesh
import slotmesh.testing
from slotmesh.codec import OCTET_STREAM
from slotmesh.runtime.channels import open_channel
from slotmesh.testing import Backend, RunningMesh
from tests.contract.direct.lanes_mesh import all_free, open_gates
from tests.contract.replica.slots.slot_replica import HANDLER, START, handler_of
from tests.contract.slot_handlers import Handler
from tests.support.attach_stream import DirectStream, direct_stream
from tests.support.fakes.clock import FakeClock
from tests.support.replicas import RunningReplica, running_replica
from tests.support.slot_doors import DirectDoor


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(START)


@pytest_asyncio.fixture
async def replica(clock: FakeClock) -> AsyncIterator[RunningReplica]:
    async with running_replica(HANDLER, clock=clock, replica_id="r-1", graceful_timeout="5s") as running:
        yield running
        handler_of(running).gate.set()


@pytest_asyncio.fixture
async def door(replica: RunningReplica) -> AsyncIterator[DirectDoor]:
    async with open_channel(replica.address) as channel:
        yield DirectDoor(channel)


@pytest_asyncio.fixture
async def stream(replica: RunningReplica) -> AsyncIterator[DirectStream]:
    async with direct_stream(replica.address) as opened:
        yield opened


@pytest_asyncio.fixture
async def mesh() -> AsyncIterator[RunningMesh]:
    """A mesh with two replicas of two permits each, which are free again when the test is over."""
    async with slotmesh.testing.mesh({"e": Backend(Handler, num_replicas=2)}, routers=2) as mesh:
        yield mesh
        open_gates(mesh)
        await all_free(mesh)


@pytest_asyncio.fixture
async def endpoint(mesh: RunningMesh) -> slotmesh.Endpoint:
    return mesh.endpoint("e").options(content_type=OCTET_STREAM)
