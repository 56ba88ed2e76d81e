"""Mutants of reservations that are repeated with their request id."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import mutant

REPLICA: Final = "replica_service/core"
ROUTER: Final = "router_service/core"
_IDS: Final = "tests/unit/replica/test_requested_slots.py"
_LOOK_UPS: Final = "tests/unit/router/features/test_slot_look_ups.py"
_MESH: Final = "tests/contract/mesh/test_repeated_reservations.py"

REPEATED_RESERVATIONS: Final = (
    mutant(
        "a reservation that must not wait is queued",
        ROUTER,
        "            else:\n                self._take_free(run, step)",
        "            else:\n                self._intake.route(run, step)",
        "tests/unit/router/queueing/test_reservations.py",
    ),
    mutant(
        "a replica has no time to grant a slot to a reservation that must not wait",
        ROUTER,
        "run.deadline = step.now + GRANT_S",
        "pass",
        "tests/unit/router/queueing/test_reservations.py",
    ),
    mutant(
        "a backend is deleted although the traffic of an endpoint that stays names it",
        "controller_service/shell",
        "if users := [it for it in users_of(desired, name) if it not in names[ENDPOINT]]:",
        "if users := [] if names[ENDPOINT] else users_of(desired, name):",
        "tests/contract/controller/test_operators.py",
    ),
    mutant(
        "an older attempt gets a slot after a look-up",
        REPLICA,
        "if fence is not None and request.order < fence.order and now < fence.until:",
        "if False:",
        _IDS,
    ),
    mutant(
        "a router without a caller releases the slot that a newer attempt has found",
        REPLICA,
        "(by is not None and slot.request is not None and by.order < slot.request.order)",
        "False",
        _IDS,
    ),
    mutant(
        "a slot whose lease has ended is found",
        REPLICA,
        "return slot.state is SlotState.BUSY or now < slot.expires_at",
        "return True",
        _IDS,
    ),
    mutant(
        "one caller fills the memory of look-ups",
        REPLICA,
        "if free <= 0 or (caller and self._fences_of[caller] >= free):",
        "if free <= 0:",
        _IDS,
    ),
    mutant(
        "the first answer without the slot is taken for all",
        ROUTER,
        "if search.open or not self._ends(search, step):",
        "if not self._ends(search, step):",
        _LOOK_UPS,
    ),
    mutant(
        "a replica that does not say whether it holds the slot holds none",
        ROUTER,
        "_HOLDS_NONE: Final = frozenset({Reason.SLOT_UNKNOWN,",
        "_HOLDS_NONE: Final = frozenset({Reason.QUEUE_FULL, Reason.SLOT_UNKNOWN,",
        _LOOK_UPS,
    ),
    mutant(
        "a reservation whose link broke goes elsewhere without a look-up",
        ROUTER,
        "return self if self.request is None else replace(self, lost_at=key)",
        "return self",
        _LOOK_UPS,
    ),
    mutant(
        "a client does not state that it repeats a reservation",
        "slotmesh/client",
        "to_wire(self._request_id, timeout_s, self._unanswered)",
        "to_wire(self._request_id, timeout_s, 0)",
        _MESH,
    ),
)
