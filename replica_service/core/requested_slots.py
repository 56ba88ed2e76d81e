"""Slots by the request ids of their reservations, and which attempts of an id may still get one.

Purpose: a caller whose router was lost repeats its reservation at another router, which looks the id up at each
replica. The caller gets the slot that it has, and no second one.
Invariants: an id has at most one slot here, while the slot is reserved or a direct stream holds it. After a look-up,
older attempts get no slot here for `FENCE_S`: longer than a router takes to find that a client is lost. If no more
look-ups can be remembered, further ones fail. An event forgets at most `FORGOTTEN_AT_ONCE` look-ups.
Owner: `SlotTable`. All times are monotonic seconds.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from typing import Final, NamedTuple

from replica_service.core import failures
from replica_service.core.call_metadata import ReservedSlot, SlotState
from slotmesh.calls.request_ids import KEEP_S, ReservationIdentity
from slotmesh.errors import Failure

FENCE_S: Final = KEEP_S
MAX_FENCES: Final = 65_536
"""Look-ups that are remembered, about 300 bytes each."""
FORGOTTEN_AT_ONCE: Final = 32


ReservationKey = tuple[str, str]
"""Caller and request id."""


class _Fence(NamedTuple):
    order: tuple[int, int]
    """That of the newest attempt that was looked up."""
    until: float


class RequestedSlots:
    """The ids of one replica."""

    def __init__(self, max_fences: int = MAX_FENCES) -> None:
        self._max_fences = max_fences
        self._slots: dict[ReservationKey, ReservedSlot] = {}
        self._fences: OrderedDict[ReservationKey, _Fence] = OrderedDict()
        """The oldest first."""
        self._fences_of: Counter[str] = Counter()
        """By caller."""

    def __len__(self) -> int:
        return len(self._slots)

    @property
    def fences(self) -> int:
        """The number of look-ups that are remembered."""
        return len(self._fences)

    def find(self, request: ReservationIdentity, now: float) -> ReservedSlot | Failure | None:
        """Returns the slot of this id, or why this attempt gets none; None if it may get a new one."""
        fence = self._fences.get(request.key) if self._fences else None
        if fence is not None and request.order < fence.order and now < fence.until:
            return failures.SUPERSEDED
        slot = self._slots.get(request.key)
        if slot is None or slot.request is None or not _lives(slot, now):
            return None
        if slot.request.digest != request.digest:
            return failures.reservation_differs(request.request_id)
        if request.order < slot.request.order:
            return failures.SUPERSEDED
        slot.request = request
        return slot

    def look_up(self, request: ReservationIdentity, now: float) -> ReservedSlot | Failure:
        """Returns the slot of this id, or SLOT_UNKNOWN. Attempts that are older than this one get no slot any more."""
        self._forget(now)
        found = self.find(request, now)
        if isinstance(found, Failure):
            return found
        if not self._fence(request, now):
            return failures.TOO_MANY_LOOK_UPS
        return failures.NOT_RESERVED if found is None else found

    def granted(self, slot: ReservedSlot) -> None:
        """A reservation has become a slot."""
        if slot.request is not None:
            self._slots[slot.request.key] = slot

    def ended(self, slot: ReservedSlot) -> None:
        """The slot was used, released, or its lease has ended."""
        if slot.request is not None and self._slots.get(slot.request.key) is slot:
            del self._slots[slot.request.key]

    def _fence(self, request: ReservationIdentity, now: float) -> bool:
        """Returns False if there is no room. Of callers with a name none has more look-ups than are free."""
        key, caller = request.key, request.caller
        if key not in self._fences:
            free = self._max_fences - len(self._fences)
            if free <= 0 or (caller and self._fences_of[caller] >= free):
                return False
            self._fences_of[caller] += 1
        self._fences[key] = _Fence(request.order, now + FENCE_S)
        self._fences.move_to_end(key)
        return True

    def _forget(self, now: float) -> None:
        for _ in range(FORGOTTEN_AT_ONCE):
            if not self._fences or next(iter(self._fences.values())).until > now:
                return
            (caller, _), _ = self._fences.popitem(last=False)
            self._fences_of[caller] -= 1
            if not self._fences_of[caller]:
                del self._fences_of[caller]


def _lives(slot: ReservedSlot, now: float) -> bool:
    """Whether the lease has not ended. While a call of a direct stream runs in the slot, its lease is suspended."""
    return slot.state is SlotState.BUSY or now < slot.expires_at
