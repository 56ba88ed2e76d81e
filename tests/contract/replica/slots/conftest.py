"""A real replica that leases slots, and the two doors to them."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.contract.replica.slots.slot_replica import HANDLER, START, handler_of
from tests.support.fakes.clock import FakeClock
from tests.support.replicas import RunningReplica, running_replica
from tests.support.slot_doors import Door, OpenDoor, by_frames, directly


@pytest.fixture(params=[by_frames, directly])
def open_door(request: pytest.FixtureRequest) -> OpenDoor:
    made: OpenDoor = request.param
    return made


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(START)


@pytest_asyncio.fixture
async def replica(clock: FakeClock) -> AsyncIterator[RunningReplica]:
    """A replica whose time is that of `clock`."""
    async with running_replica(HANDLER, clock=clock, replica_id="r-1", graceful_timeout="200ms") as running:
        yield running
        handler_of(running).gate.set()


@pytest_asyncio.fixture
async def live() -> AsyncIterator[RunningReplica]:
    """A replica whose time passes by itself."""
    async with running_replica(HANDLER, replica_id="r-1", graceful_timeout="5s") as running:
        yield running
        handler_of(running).gate.set()


@pytest_asyncio.fixture
async def door(replica: RunningReplica, open_door: OpenDoor) -> AsyncIterator[Door]:
    async with open_door(replica) as opened:
        yield opened
