"""What a replica keeps of sessions that it has dropped: the newest epoch, and up to where calls are unaccounted for.

Purpose: an older epoch stays refused, and a question for a call that the replica had a record of and has dropped is
answered "unknown".
Invariants: nothing is kept of sessions of which nothing could be asked or refused. Bounded: the oldest go first.
Owner: the session table.
"""

from __future__ import annotations

from typing import NamedTuple

MAX_FORGOTTEN = 65_536
"""How many forgotten sessions a replica remembers."""


class Remnant(NamedTuple):
    """One forgotten session."""

    epoch: int
    """The newest epoch that was seen."""
    lost_through: int
    """No call with a greater id had started and is unaccounted for; 0 where none is."""


class ForgottenSessions:
    """The remnants, by session."""

    __slots__ = ("_max", "_remnants")

    def __init__(self, most: int = MAX_FORGOTTEN) -> None:
        self._max = most
        self._remnants: dict[str, Remnant] = {}
        """By age."""

    def __len__(self) -> int:
        return len(self._remnants)

    def add(self, session_id: str, remnant: Remnant) -> None:
        """The session is dropped now."""
        if remnant.epoch <= 1 and not remnant.lost_through:
            return
        if len(self._remnants) >= self._max:
            del self._remnants[next(iter(self._remnants))]
        self._remnants[session_id] = remnant

    def find(self, session_id: str) -> Remnant | None:
        """What is known of the session, if it was dropped."""
        return self._remnants.get(session_id)

    def remove(self, session_id: str) -> None:
        """The session is back, and not forgotten any more."""
        self._remnants.pop(session_id, None)
