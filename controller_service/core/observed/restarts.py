"""When the replacement of an ended replica starts, and when a version of a backend counts as crash looping.

Invariants: after a long life the next replica starts immediately; after short ones with growing delays, unless replicas
that were ready were killed from outside: no handler ends by SIGKILL, so these start again soon. Deaths of one wave
count once. What is counted belongs to a template: a version that is new starts without delay, and a healthy replica of
another version does not make one of its own less of a crash loop. A long life ends the row, however it ended.
Owner: pure functions, for `transitions` and `launches`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from controller_service.core.events import EventKind, Notice
from controller_service.core.observed.replicas import STARTS_KEPT, UnreplacedExit, take_place, with_exit
from controller_service.core.observed.state import Observed, ObservedReplica, Restarts

QUICK_DEATH_S: Final = 10.0
"""A replica that dies sooner than this after it got ready makes the next start wait."""
FIRST_INTERVAL_S: Final = 0.5
LONGEST_INTERVAL_S: Final = 30.0
LOOPING_AFTER: Final = 3
"""This number of waves of quick deaths in a row makes a crash loop."""


def after_death(restarts: Restarts, replica: ObservedReplica, now: float, *, was_killed: bool = False) -> Restarts:
    """When the next replica of the template may start: immediately after a long life, later and later after short ones.

    `was_killed`: by SIGKILL, and not by this controller.
    """
    if _has_lived_long(replica, now):
        return Restarts()
    if replica.started_at < restarts.counted_at:
        return restarts  # of the same wave as a death that was counted
    if was_killed and replica.ready_at is not None:
        return replace(restarts, counted_at=now, not_before=now + FIRST_INTERVAL_S)
    interval_s = min(LONGEST_INTERVAL_S, FIRST_INTERVAL_S * 2.0 ** min(restarts.streak, 16))
    return Restarts(streak=restarts.streak + 1, counted_at=now, not_before=now + interval_s)


def count_death(observed: Observed, replica: ObservedReplica, now: float, *, was_killed: bool = False) -> Observed:
    """A replica has ended, as far as it was launched. One that was asked to does not count, but for its long life."""
    if not replica.launched or (replica.is_drain_requested and not _has_lived_long(replica, now)):
        return observed
    backend, template = replica.backend, replica.template
    restarts = observed.restarts_of(backend, template)
    if any(
        it.template == template and _has_lived_long(it, now) and (it.ready_at or 0.0) > restarts.counted_at
        for it in observed.replicas(backend)
        if it.ended_at is None and not it.gone
    ):
        restarts = Restarts()  # another one that was started since lives: the row has ended
    return observed.with_restarts(backend, template, after_death(restarts, replica, now, was_killed=was_killed))


def _has_lived_long(replica: ObservedReplica, now: float) -> bool:
    return replica.ready_at is not None and now - replica.ready_at >= QUICK_DEATH_S


def loop_notices(
    before: Observed, after: Observed, replica: ObservedReplica, how: str, now: float
) -> tuple[Notice, ...]:
    """A notice where one more wave of deaths makes, or prolongs, a crash loop. `how` the replica, the newest, ended."""
    backend, template = replica.backend, replica.template
    restarts = after.restarts_of(backend, template)
    if restarts.streak < LOOPING_AFTER or restarts.streak <= before.restarts_of(backend, template).streak:
        return ()
    wait_s = max(0.0, restarts.not_before - now)
    message = f"{restarts.streak} times in a row its replicas have ended soon after their start, the last one so: {how}"
    message += f"; the next start is in {wait_s:.1f} s"
    return (Notice(kind=EventKind.BACKEND_CRASH_LOOPING, subject=f"backend/{backend}", message=message),)


def vacated(observed: Observed, replica: ObservedReplica) -> Observed:
    """The replica has ended unasked."""
    exit_ = UnreplacedExit(
        backend=replica.backend,
        template=replica.template,
        restarts=replica.restarts,
        how=replica.last_exit,
        last_output=replica.last_output,
        starts=(*replica.earlier_starts, replica.started_at)[-STARTS_KEPT:],
    )
    return replace(observed, unreplaced=with_exit(observed.unreplaced, exit_))


def in_place(observed: Observed, started: ObservedReplica) -> tuple[Observed, ObservedReplica]:
    """The replica was started, in place of one that has ended where there is such a place."""
    left, before = take_place(observed.unreplaced, started.backend, started.template)
    if before is None:
        return observed, started
    record = replace(
        started,
        restarts=before.restarts + 1,
        earlier_starts=before.starts,
        last_exit=before.how,
        last_output=before.last_output,
    )
    return replace(observed, unreplaced=left), record
