"""Slots that are reserved, then used or given back; and direct lanes, which hold slots for many calls."""

from __future__ import annotations

from slotmesh.client.slots.direct_lanes import DirectLanes, DirectMethod
from slotmesh.client.slots.reservations import Reservation, ReservationOfAll
from slotmesh.client.slots.slot import ReplicaLoad, Slot, SlotMethod

__all__ = ["DirectLanes", "DirectMethod", "ReplicaLoad", "Reservation", "ReservationOfAll", "Slot", "SlotMethod"]
