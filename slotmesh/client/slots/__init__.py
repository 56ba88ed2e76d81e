"""Two-step routing: slots that are reserved, then used or given back."""

from __future__ import annotations

from slotmesh.client.slots.reservations import Reservation, ReservationOfAll
from slotmesh.client.slots.slot import ReplicaLoad, Slot, SlotMethod

__all__ = ["ReplicaLoad", "Reservation", "ReservationOfAll", "Slot", "SlotMethod"]
