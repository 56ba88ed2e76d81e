"""How far the lanes of a session have come: nothing is executed behind what came after it.

Purpose: a router that lost its link says so of the calls that were under way and goes on with the next ones. A client
that changes routers before it hears that sends those calls again, and no replica has seen them: they are too late.
Invariants: only what has started counts. Bounded: the newest lanes of a session.
Owner: the session.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from replica_service.core.calls import Run

MAX_LANES = 65_536
"""Lanes that a session remembers."""

Progress = dict[tuple[str, str], int]
"""Endpoint and ordering key -> id of the last call that has started."""


def note_progress(run: Run, index: int) -> None:
    """The calls of the run up to this one have started."""
    record = run.record
    if record is None or (session := record.session) is None:
        return
    progress, lane = session.progress, (run.endpoint, run.ordering_key)
    if lane not in progress and len(progress) >= MAX_LANES:
        del progress[next(iter(progress))]
    progress[lane] = record.call_ids[index]


def is_passed(run: Run) -> bool:
    """Whether calls that came after the next one of this run have started."""
    record = run.record
    if record is None or (session := record.session) is None:
        return False
    last = session.progress.get((run.endpoint, run.ordering_key))
    return last is not None and record.call_ids[run.lo] < last
