"""The client, for asyncio: `connect`, endpoints, methods, lanes."""

from __future__ import annotations

from slotmesh.client.calls.method import Method
from slotmesh.client.direct import DirectLanes, DirectMethod
from slotmesh.client.endpoint import Endpoint, Lane
from slotmesh.client.mesh import Mesh, connect
from slotmesh.client.slots import ReplicaLoad, Reservation, ReservationOfAll, Slot, SlotMethod
from slotmesh.client.tls import Tls
from slotmesh.client.values.value_stream import ValueStream

__all__ = [
    "DirectLanes",
    "DirectMethod",
    "Endpoint",
    "Lane",
    "Mesh",
    "Method",
    "ReplicaLoad",
    "Reservation",
    "ReservationOfAll",
    "Slot",
    "SlotMethod",
    "Tls",
    "ValueStream",
    "connect",
]
