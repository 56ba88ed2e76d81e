"""Which replicas should end whatever their backend's settings say: told to, unhealthy, lingering, or hung.

Invariants: a replica is killed only if this controller launched it, and after it was silent for as long as it may be:
`give_up_after_s` for one that has served here, longer for one that starts or has not attached again. One that somebody
else started is never ended for its silence: nobody could prove that it had ended.
Owner: `core.reconcile`, for one backend at a time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from controller_service.core.observed import ObservedReplica
from controller_service.core.unattached import is_counted

LINGER_S: Final = 5.0
"""A process whose replica has reported its end may take this long to exit."""
UNHEALTHY: Final = "its health checks fail"
START_PATIENCE_S: Final = 120.0
"""A process that was started may be silent for this long until it is ready, and one that was found running until it has
attached: imports keep a process busy, and a machine on which many start is slow."""
NEVER_S: Final = float("inf")
"""Replicas are not given up for their silence."""


@dataclass(slots=True)
class DueEndings:
    """The replicas that should end."""

    leaving: dict[str, str] = field(default_factory=dict[str, str])
    """Those that should drain: id -> reason."""
    hung: dict[str, str] = field(default_factory=dict[str, str])
    """Those that should be killed: id -> what is wrong."""
    again_after_s: float | None = None
    """When to look again."""

    def look_again(self, after_s: float) -> None:
        """Look again in `after_s` seconds, or earlier."""
        if after_s < NEVER_S and (self.again_after_s is None or after_s < self.again_after_s):
            self.again_after_s = after_s


def find_endings(
    replicas: Iterable[ObservedReplica], now: float, *, launches: bool, give_up_after_s: float = NEVER_S
) -> DueEndings:
    """`give_up_after_s`: how long a launched replica may be suspect."""
    found = DueEndings()
    for replica in replicas:
        if replica.is_over or replica.is_given_up:
            continue
        if launches and replica.launched and not replica.reaped:
            left_s = _silence_left_s(replica, now, give_up_after_s)
            if left_s <= 0.0:
                found.hung[replica.replica_id] = "it was silent for too long: its process is killed"
                continue
            found.look_again(left_s)
        if replica.is_told_to_drain:
            found.leaving[replica.replica_id] = "told to"
        elif replica.is_unhealthy and not replica.gone and not (launches and is_counted(replica, now)):
            found.leaving[replica.replica_id] = UNHEALTHY  # its own launcher will start another one
        elif replica.launched and replica.ended_at is not None:
            left_s = replica.ended_at + LINGER_S - now
            if left_s <= 0.0:
                found.leaving[replica.replica_id] = "it said that it ended, and is still there"
            else:
                found.look_again(left_s)
    return found


def _silence_left_s(replica: ObservedReplica, now: float, give_up_after_s: float) -> float:
    """For how long it may go on being silent; infinite while it is not, or has said that it ended."""
    if replica.gone or give_up_after_s == NEVER_S:
        return NEVER_S
    if not replica.has_attached:
        return (replica.started_at if replica.suspect_since is None else replica.suspect_since) + START_PATIENCE_S - now
    if replica.suspect_since is None:
        return NEVER_S
    patience_s = give_up_after_s if replica.ready_at is not None else max(give_up_after_s, START_PATIENCE_S)
    return replica.suspect_since + patience_s - now
