"""Waiting calls of sessions whose clients do not know all replicas that calls go to.

Invariants: a run that waits here is in no queue. No run stays here longer than its session's connection.
Owner: the acknowledgements; the intake brings what has to wait.
"""

from __future__ import annotations

from collections import deque
from math import inf

from router_service.core.runs import RouterRun
from router_service.core.sessions.session import SessionConnection

_SWEEP_FROM = 1024


class _Held:
    """What waits of one session."""

    __slots__ = ("runs", "sweep_at")

    def __init__(self) -> None:
        self.runs: deque[tuple[RouterRun, float, bool]] = deque()
        """Since when each waits, and whether it was admitted before."""
        self.sweep_at = _SWEEP_FROM


class SuspendedRuns:
    """Runs that wait for an acknowledgement, by session."""

    def __init__(self) -> None:
        self._held: dict[SessionConnection, _Held] = {}

    def hold(self, session: SessionConnection, run: RouterRun, now: float, *, is_admitted: bool) -> None:
        """The run waits until the client knows all replicas that calls go to."""
        held = self._held.setdefault(session, _Held())
        held.runs.append((run, now, is_admitted))
        if len(held.runs) > held.sweep_at:
            held.runs = deque(each for each in held.runs if each[0].waiting)
            held.sweep_at = max(_SWEEP_FROM, 2 * len(held.runs))

    def since(self, session: SessionConnection) -> float:
        """When the oldest run of the session began to wait, monotonic seconds; infinite where none waits."""
        held = self._held.get(session)
        if held is None:
            return inf
        while held.runs and not held.runs[0][0].waiting:
            held.runs.popleft()
        return held.runs[0][1] if held.runs else inf

    def release(self, session: SessionConnection) -> list[tuple[RouterRun, bool]]:
        """All that waits of the session, by age, and whether it was admitted before. It waits no longer."""
        held = self._held.pop(session, None)
        waiting = sorted((each for each in held.runs if each[0].waiting), key=lambda each: each[0].age) if held else []
        return [(run, is_admitted) for run, _, is_admitted in waiting]

    def forget(self, session: SessionConnection) -> None:
        """The connection has ended."""
        self._held.pop(session, None)

    def __len__(self) -> int:
        return sum(len(held.runs) for held in self._held.values())
