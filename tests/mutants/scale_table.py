"""Mutants of the controller at scale: what is reported of a change, and what is accepted, shared and cut into parts."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import mutant

CONTROLLER: Final = "controller_service"
ROUTER: Final = "router_service"

_REPORTS: Final = (
    mutant(
        "a change whose caller was cancelled while the store wrote is not reported",
        CONTROLLER,
        "writing.add_done_callback(partial(self._written, change.origin))",
        "pass",
        "tests/contract/controller/test_audit.py",
    ),
    mutant(
        "of a large change only the first slice is reported",
        CONTROLLER,
        "loop.call_soon(self._go_on)",
        "self._waiting.clear()",
        "tests/contract/controller/test_audit.py",
    ),
    mutant(
        "a paused rollout has no audit line",
        CONTROLLER,
        "if rollout.is_paused != (known is not None and known.is_paused):",
        "if False:",
        "tests/contract/controller/test_audit.py",
    ),
)

_BOUNDS: Final = (
    mutant(
        "a backend is accepted whose configuration fits no frame",
        CONTROLLER,
        "if isinstance(resource, Backend) and size > max(MAX_BACKEND_BYTES, before):",
        "if False:",
        "tests/contract/controller/test_configuration_bounds.py",
    ),
    mutant(
        "a configuration is accepted that fits no list of it",
        CONTROLLER,
        "if total > max(MAX_CONFIGURATION_BYTES, self._total):",
        "if False:",
        "tests/contract/controller/test_configuration_bounds.py",
    ),
    mutant(
        "a pass plans all endpoints, however long that takes",
        CONTROLLER,
        "if at and slices.used_s >= until_s:",
        "if False:",
        "tests/unit/controller/test_reconcile_budget.py",
    ),
    mutant(
        "hand-overs of all endpoints begin together",
        CONTROLLER,
        "if handing_over >= MAX_HANDOVERS:",
        "if False:",
        "tests/unit/controller/test_reconcile_budget.py",
    ),
    mutant(
        "equal owners of partitions are kept for each endpoint",
        CONTROLLER,
        "return self._known.setdefault(content, ownership)",
        "return ownership",
        "tests/unit/controller/test_reconcile_budget.py",
    ),
)

_STARTS: Final = (
    mutant(
        "all replicas of a backend start at a time",
        "controller_service",
        "(more := min(moves.start, room.left(everything))) > 0",
        "(more := moves.start) > 0",
        "tests/unit/controller/test_launches.py",
    ),
    mutant(
        "a replica that waits for a device counts as one that starts",
        "controller_service",
        "self.most_starting - sum(not it.waits_for for it in unattached)",
        "self.most_starting - sum(1 for it in unattached)",
        "tests/unit/controller/test_launches.py",
    ),
)

_TABLES: Final = (
    mutant(
        "the first part of a table is in force before the others",
        ROUTER,
        "if part.is_last:\n                    self._parts = None\n                    self._take(table.finish())",
        "self._take(table.finish())",
        "tests/contract/router/test_table_parts.py",
    ),
    mutant(
        "a part that has no first one is taken",
        ROUTER,
        "self._from_stream, self._is_whole_due, self._parts = None, False, None",
        "self._from_stream, self._is_whole_due = None, False",
        "tests/contract/router/test_table_parts.py",
    ),
    mutant(
        "shared owners of partitions are those of the next assignment",
        ROUTER,
        "assignments[wire.assignment - 1] if wire.assignment",
        "assignments[wire.assignment % len(assignments)] if wire.assignment",
        "tests/properties/test_table_deltas.py",
    ),
)

SCALE: Final = (*_REPORTS, *_BOUNDS, *_STARTS, *_TABLES)
