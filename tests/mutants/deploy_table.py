"""Mutants of what operators change: what a rollback undoes."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import mutant

_CONTROLLER: Final = "controller_service"
_SHIFT_ROLLBACK: Final = "tests/unit/controller/test_shift_rollback.py"

DEPLOY: Final = (
    mutant(
        "a rollback after a shift undoes its last step",
        _CONTROLLER,
        "    if not newest.origin.part_of:\n        return (newest,)",
        "    if True:\n        return (newest,)",
        _SHIFT_ROLLBACK,
    ),
    mutant(
        "a rollback after a shift undoes what others have changed during it",
        _CONTROLLER,
        "return change == desired.history[-len(change) :] and weights",
        "return weights",
        _SHIFT_ROLLBACK,
    ),
    mutant(
        "a shift whose first steps are not kept is undone to its middle",
        _CONTROLLER,
        "if shift is not None and shift.change_id == change[0].origin.part_of:",
        "if False:",
        _SHIFT_ROLLBACK,
    ),
    mutant(
        "the state file forgets of which shift a revision is a part",
        _CONTROLLER,
        'frozenset({"identity", "method", "part_of"})',
        'frozenset({"identity", "method"})',
        "tests/contract/test_controller_shift_restart.py",
    ),
)
