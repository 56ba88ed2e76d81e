"""Two-step routing: slots that are reserved, then used or given back."""

from __future__ import annotations

from slotmesh.client.slots.method import SlotMethod
from slotmesh.client.slots.reservation import Reservation
from slotmesh.client.slots.slot import ReplicaLoad, Slot
from slotmesh.client.slots.together import ReservationOfAll

__all__ = ["ReplicaLoad", "Reservation", "ReservationOfAll", "Slot", "SlotMethod"]
