"""Mutants of what operators change: what a rollback undoes, and who gets traffic."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import mutant

_CONTROLLER: Final = "controller_service"
_CHANGES: Final = "tests/contract/test_controller_changes.py"
_READINESS: Final = "tests/unit/controller/test_readiness.py"
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
    mutant(
        "traffic for a backend without a ready replica is accepted although the request asks for the check",
        _CONTROLLER,
        "            if requires_ready:\n                self.require_ready(",
        "            if False:\n                self.require_ready(",
        _CHANGES,
    ),
    mutant(
        "a shift to a backend without a ready replica begins although the request asks for the check",
        _CONTROLLER,
        "            if requires_ready:\n                self._configurator.require_ready(",
        "            if False:\n                self._configurator.require_ready(",
        _CHANGES,
    ),
    mutant(
        "a request of an older client is checked for ready replicas",
        _CONTROLLER,
        "            requires_ready=request.require_ready,",
        "            requires_ready=True,",
        _CHANGES,
    ),
    mutant(
        "a backend that is scaled to zero gets no traffic",
        _CONTROLLER,
        "if _is_idle(backend, observed) or any(",
        "if any(",
        _READINESS,
    ),
    mutant(
        "right after a start no backend is ready",
        _CONTROLLER,
        "since is not None and now < since + RETURN_WITHIN_S",
        "False",
        _READINESS,
    ),
    mutant(
        "a replica that has not come back for long counts as ready",
        _CONTROLLER,
        "since is not None and now < since + RETURN_WITHIN_S",
        "since is not None",
        _READINESS,
    ),
    mutant(
        "traffic cannot be taken away from a backend that is not ready",
        _CONTROLLER,
        "if weight - old.get(name, 0.0) > SAME",
        "if weight > SAME",
        f"{_READINESS} {_CHANGES}",
    ),
)
