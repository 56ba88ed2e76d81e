"""Which calls a router may still cancel, once sessions have moved to another router.

A router that a session has left may not know that yet. It may cancel a call whose deadline has passed, after another
router has been told that the call runs, and waits for its outcome.
Owner: the scheduler, which notes in `RouterPeer.moved` what has moved; the engine asks before it cancels calls.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from replica_service.core.calls import ReplicaRun, RouterPeer
from slotmesh.wire.ranges import Range, merged, without


def note_moved(runs: Sequence[ReplicaRun]) -> None:
    """The sessions of these runs went on elsewhere."""
    for link in {run.link for run in runs}:
        link.moved = _pending(link)
    for run in runs:
        run.link.moved.append(run)


def without_moved(link: RouterPeer, ranges: Iterable[Range]) -> list[Range]:
    """These run ids of the link, both ends included, but for those of calls that went on elsewhere."""
    if not link.moved:
        return list(ranges)
    link.moved = _pending(link)
    moved = merged((run.first + run.begin, run.first + run.end - 1) for run in link.moved)
    return [part for first, last in ranges for part in without(first, last, moved)]


def _pending(link: RouterPeer) -> list[ReplicaRun]:
    return [run for run in link.moved if run.record is not None and run.record.pending]
