"""Mutants of traffic that waits for rollouts, and of what is said of changes that were made or rolled back."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import mutant

CONTROLLER: Final = "controller_service"
_WAITS: Final = "tests/unit/controller/test_traffic_waits.py"

ROLLBACK: Final = (
    mutant(
        "traffic moves before the code that it moves to runs",
        CONTROLLER,
        "    if waiting := [it for name in sorted(shift.awaits) if (it := rollouts[name].waits_for)]:\n",
        "    if waiting := [it for name in () if (it := rollouts[name].waits_for)]:\n",
        _WAITS,
    ),
    mutant(
        "traffic waits for the first of several rollouts only",
        CONTROLLER,
        "for name in sorted(shift.awaits) if (it := rollouts[name].waits_for)]",
        "for name in sorted(shift.awaits)[:1] if (it := rollouts[name].waits_for)]",
        _WAITS,
    ),
    mutant(
        "traffic moves to code that was rolled back",
        CONTROLLER,
        "        if (rollout := rollouts.get(name, GONE)).given_up:\n",
        "        if (rollout := rollouts.get(name, GONE)) is GONE:\n",
        _WAITS,
    ),
    mutant(
        "a backend is deleted while it has traffic that waits",
        CONTROLLER,
        "if it not in kept)",
        "if it)",
        _WAITS,
    ),
    mutant(
        "an operator's weights do not end the wait",
        CONTROLLER,
        "held = None if name in immediately else _held(",
        "held = _held(",
        _WAITS,
    ),
    mutant(
        "later code of an awaited backend counts as rolled back",
        CONTROLLER,
        "(template := rolling.get(it) or earlier.get(it))",
        "(template := earlier.get(it) or rolling.get(it))",
        _WAITS,
    ),
    mutant(
        "a rollback to a revision leaves out the traffic that waited then",
        CONTROLLER,
        "_plan_whole(desired, _with_traffic_that_followed(desired, mesh, revision), launches=launches)",
        "_plan_whole(desired, mesh, launches=launches)",
        _WAITS,
    ),
)
