"""Lanes that stop after a failure: which calls do not start because one before them has failed.

Purpose: a session remembers, of each lane of which a call has failed, the first such call of each generation.
Invariants: only calls behind the one that failed are stopped, and none of another generation. Bounded: the newest
generations of a lane, and the newest lanes of a session.
Owner: the session.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from replica_service.core.calls import Run

MAX_LANES = 65_536
"""Lanes that a session remembers."""
MAX_GENERATIONS = 16
"""Generations that a lane remembers, as many as its client does: calls may belong to one that is over."""


class Stops:
    """What has failed in the lanes of one session."""

    __slots__ = ("_failed",)

    def __init__(self) -> None:
        self._failed: dict[tuple[str, str], dict[int, int]] = {}
        """Endpoint and ordering key -> generation -> id of its first call that failed."""

    def __len__(self) -> int:
        return len(self._failed)

    def failed(self, endpoint: str, key: str, generation: int, call_id: int) -> None:
        """A call has failed."""
        lane = (endpoint, key)
        generations = self._failed.get(lane)
        if generations is None:
            if len(self._failed) >= MAX_LANES:
                del self._failed[next(iter(self._failed))]
            generations = self._failed[lane] = {}
        generations[generation] = min(call_id, generations.get(generation, call_id))
        if len(generations) > MAX_GENERATIONS:
            del generations[min(generations)]

    def is_stopped(self, endpoint: str, key: str, generation: int, call_id: int) -> bool:
        """Whether a call before this one has failed."""
        generations = self._failed.get((endpoint, key))
        return generations is not None and generations.get(generation, call_id) < call_id


def is_stopped(run: Run, index: int) -> bool:
    """Whether a call must not start because one before it has failed."""
    generation = run.options.stop_generation
    if not generation or not run.ordering_key:
        return False
    if index > run.failed_at:
        return True
    record = run.record
    if record is None or record.session is None or (stops := record.session.stops) is None:
        return False
    return stops.is_stopped(run.endpoint, run.ordering_key, generation, record.call_ids[index])


def is_late(run: Run, now: float) -> bool:
    """Whether a call that ends now has failed, whatever it returns: its lane stops, and its time is over."""
    return run.options.stop_generation > 0 and now >= run.deadline


def mark_failure(run: Run, lo: int) -> None:
    """The same as `note_failure`, where the run is executed, which is told of it later. On any thread."""
    if run.options.stop_generation:
        run.failed_at = min(run.failed_at, lo)


def note_failure(run: Run, lo: int) -> None:
    """The calls of the run from index `lo` on, one at least, have failed."""
    record = run.record
    if run.ordering_key and record is not None and (session := record.session) is not None:
        if session.stops is None:
            session.stops = Stops()
        session.stops.failed(run.endpoint, run.ordering_key, run.options.stop_generation, record.call_ids[lo])
