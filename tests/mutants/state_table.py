"""Mutants of idle sessions, and of what handlers are told of their keys."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import mutant

CLIENT: Final = "slotmesh/client"
CONFIG: Final = "slotmesh/config"
PULSES: Final = "tests/unit/client/test_heartbeats.py"

_HEARTBEATS: Final = (
    mutant(
        "the first call after a rest counts no silence",
        CLIENT,
        "elif self.pulse is not None and self.pulse.is_resting:",
        "elif False:",
        "tests/contract/test_client_sessions.py",
    ),
    mutant(
        "a stream rests while a call is unanswered",
        CLIENT,
        "self._idle_beats = 0 if self._awaits_answers() else self._idle_beats + 1",
        "self._idle_beats += 1",
        PULSES,
    ),
    mutant(
        "a stream rests though its newest heartbeat was not answered",
        CLIENT,
        "self._idle_beats >= IDLE_BEATS and not self._quiet_beats",
        "self._idle_beats >= IDLE_BEATS",
        PULSES,
    ),
    mutant(
        "a stream rests at a router that did not allow it",
        CLIENT,
        "if self._rest_s and self._idle_beats",
        "if self._idle_beats",
        PULSES,
    ),
    mutant(
        "sessions that lost the same router beat together",
        CLIENT,
        "self._rest_s * random.uniform(0.8, 1.0)",
        "self._rest_s",
        PULSES,
    ),
    mutant(
        "a stream that may be silent for a short time only is cut while it rests",
        CONFIG,
        "min(timeout_s / HEARTBEATS_PER_TIMEOUT, IDLE_HEARTBEAT_S)",
        "IDLE_HEARTBEAT_S",
        "tests/unit/runtime/test_edge_limits.py",
    ),
)

STATE: Final = _HEARTBEATS
