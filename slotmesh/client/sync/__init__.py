"""The client for programs without asyncio: the same endpoints, methods and lanes, whose calls block.

A thin layer: one thread has an event loop with the asyncio client, and all other threads pass their calls to it.
"""

from __future__ import annotations

from slotmesh.client.sync.broadcast import SyncBroadcast, SyncBroadcastMethod
from slotmesh.client.sync.mesh import SyncEndpoint, SyncLane, SyncMesh, connect_sync
from slotmesh.client.sync.method import SyncMethod, SyncValueStream
from slotmesh.client.sync.slots import (
    SyncDirectLanes,
    SyncDirectMethod,
    SyncReservation,
    SyncReservationOfAll,
    SyncSlot,
    SyncSlotMethod,
)

__all__ = [
    "SyncBroadcast",
    "SyncBroadcastMethod",
    "SyncDirectLanes",
    "SyncDirectMethod",
    "SyncEndpoint",
    "SyncLane",
    "SyncMesh",
    "SyncMethod",
    "SyncReservation",
    "SyncReservationOfAll",
    "SyncSlot",
    "SyncSlotMethod",
    "SyncValueStream",
    "connect_sync",
]
