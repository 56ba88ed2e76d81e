"""Mutants of the controller at scale: what is reported of a change, and what is accepted, shared and cut into parts."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import mutant

CONTROLLER: Final = "controller_service"

_REPORTS: Final = (
    mutant(
        "a change whose caller was cancelled while the store wrote is not reported",
        CONTROLLER,
        "writing.add_done_callback(partial(self._written, change.origin))",
        "pass",
        "tests/contract/test_controller_audit.py",
    ),
    mutant(
        "of a large change only the first slice is reported",
        CONTROLLER,
        "loop.call_soon(self._go_on)",
        "self._waiting.clear()",
        "tests/contract/test_controller_audit.py",
    ),
    mutant(
        "a paused rollout has no audit line",
        CONTROLLER,
        "if rollout.is_paused != (known is not None and known.is_paused):",
        "if False:",
        "tests/contract/test_controller_audit.py",
    ),
)

SCALE: Final = (*_REPORTS,)
