"""Mutants of fences: a replica that ends itself, and a controller that relies on that."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import mutant

REPLICA: Final = "replica_service"
CONTROLLER: Final = "controller_service"
_MODEL: Final = "tests/properties/test_fences.py"
_UNIT: Final = "tests/unit/replica/test_fence.py"
_CONTRACT: Final = "tests/contract/replica/test_fences.py"

FENCE: Final = (
    mutant(
        "a fence counts from the arrival of the acknowledgement",
        REPLICA,
        "self._since = min(stamp, now)\n",
        "self._since = now\n",
        _MODEL,
    ),
    mutant(
        "a fence that has closed opens again",
        REPLICA,
        "if not self.has_begun or self.is_closed(now) or",
        "if not self.has_begun or",
        _UNIT,
    ),
    mutant(
        "an older acknowledgement shortens a fence",
        REPLICA,
        " or min(stamp, now) <= self._since:",
        ":",
        _UNIT,
    ),
    mutant(
        "a process that stood still between clock and timer is ended later",
        REPLICA,
        "if self._now() - began < SLACK_S:",
        "if True:",
        _UNIT,
    ),
    mutant(
        "the timer of a fence is disarmed where its time has passed",
        REPLICA,
        "max(_SOONEST_S, ends_at - began)",
        "max(0.0, ends_at - began)",
        _UNIT,
    ),
    mutant(
        "a signal that is blocked leaves a fenced process running",
        REPLICA,
        "signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})",
        "pass",
        _UNIT,
    ),
    mutant(
        "the timer of a fence is not moved by an acknowledgement",
        REPLICA,
        "if self._fence.acknowledged(stamp / 1e9, self._now()):\n            self._timer.set(self._fence.ends_at)",
        "if self._fence.acknowledged(stamp / 1e9, self._now()):\n            pass",
        _CONTRACT,
    ),
    mutant(
        "a replica whose handler has taken the fence's signal goes on",
        REPLICA,
        "if self._timer.is_overridden:",
        "if False:",
        _CONTRACT,
    ),
    mutant(
        "a replica that is fenced takes as long to drain as any other",
        REPLICA,
        "min(grace_s, self._most_grace_s)",
        "grace_s",
        _CONTRACT,
    ),
    mutant(
        "a controller counts a fence from before the newest report",
        CONTROLLER,
        "if now - max(silent_since, since) > replica.fenced_after_s * (1 + DRIFT) + MARGIN_S:",
        "if now - max(silent_since, since) > replica.fenced_after_s - 1.0:",
        _MODEL,
    ),
    mutant(
        "a controller allows for no drift of clocks",
        CONTROLLER,
        "if now - max(silent_since, since) > replica.fenced_after_s * (1 + DRIFT) + MARGIN_S:",
        "if now - max(silent_since, since) > replica.fenced_after_s + MARGIN_S:",
        "tests/unit/controller/test_fences.py",
    ),
    mutant(
        "a replica that reports counts as fenced",
        CONTROLLER,
        "if replica.suspect_since is None:\n            continue\n        silent_since = replica.suspect_since if",
        "silent_since = (replica.suspect_since or 0.0) if",
        "tests/unit/controller/test_fences.py",
    ),
    mutant(
        "a controller that is on hold acknowledges reports",
        CONTROLLER,
        "if self.newer.decides and replica.incarnation",
        "if replica.incarnation",
        _CONTRACT,
    ),
    mutant(
        "a controller that is on hold concludes from silence",
        CONTROLLER,
        "if self._is_on_hold():",
        "if False:",
        "tests/unit/controller/test_fences.py",
    ),
    mutant(
        "a restarted controller has forgotten which replicas fence themselves",
        CONTROLLER,
        "fenced_after_s=member.fenced_after_s,",
        "",
        _CONTRACT,
    ),
    mutant(
        "an ingress follows the routes of an older copy",
        "ingress_service",
        "if self.is_held and self.revision >= 0:",
        "if False:",
        "tests/contract/ingress/test_held_routes.py",
    ),
    mutant(
        "an ingress without routes waits for a controller on hold",
        "ingress_service",
        "if self.is_held and self.revision >= 0:",
        "if self.is_held:",
        "tests/contract/ingress/test_held_routes.py",
    ),
    mutant(
        "an ingress that has newer routes than its controller shows nothing of it",
        "ingress_service",
        "state.on_hold or is_older",
        "state.on_hold",
        "tests/contract/ingress/test_held_routes.py",
    ),
    mutant(
        "a controller reports that it is on hold to ingresses that come later alone",
        CONTROLLER,
        "self.begun.set()",
        "pass",
        "tests/contract/ingress/test_held_routes.py",
    ),
)
"""What follows from silence, and from an older state."""
