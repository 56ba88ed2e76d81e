"""Two-step routing: slots that are reserved, then used or given back."""

from __future__ import annotations

from slotmesh.client.slots.reservation import Reservation
from slotmesh.client.slots.reserve_all import ReservationOfAll
from slotmesh.client.slots.slot import ReplicaLoad, Slot
from slotmesh.client.slots.slot_method import SlotMethod

__all__ = ["ReplicaLoad", "Reservation", "ReservationOfAll", "Slot", "SlotMethod"]
