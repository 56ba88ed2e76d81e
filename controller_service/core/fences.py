"""Which silent replicas have ended by themselves, since they fence themselves.

Purpose: a replica that announced `fenced_after_s` ends its process when that time has passed since it sent the newest
report that was acknowledged. The controller read that report later than it was sent, and found the replica silent later
still: so the process has ended when the time has passed once more since then, with a margin.
Invariants: the two clocks are never compared, only durations are, and they may drift by `DRIFT` against one another; a
replica that this controller launched, or that has not been ready, is never found here.
Owner: `shell.process_watch`.
"""

from __future__ import annotations

from typing import Final

from controller_service.core.observed import Observed
from controller_service.core.partitions import Incarnation

DRIFT: Final = 0.02
"""By how much, of a duration, two monotonic clocks may differ: many times what clocks of machines do."""
MARGIN_S: Final = 2.0
"""Added to that: for a process that is killed, and for the second in which an earlier leader may still acknowledge."""


def fenced(observed: Observed, now: float, *, since: float) -> dict[Incarnation, float]:
    """Incarnations that have ended, and after how many seconds of silence. Time before `since` does not count."""
    ended = dict[Incarnation, float]()
    for replica in observed.incarnations():
        if replica.gone or replica.launched or replica.ready_at is None or not replica.fenced_after_s:
            continue
        if replica.suspect_since is None:
            continue
        silent_s = now - max(replica.suspect_since, since)
        if silent_s > replica.fenced_after_s * (1 + DRIFT) + MARGIN_S:
            ended[replica.owner] = now - replica.suspect_since
    return ended
