"""Rollouts: how far one is, its next moves, and when it has to be rolled back.

Purpose: `(record, backend, replicas, now) -> step`: what to remember next, and the settings to go back to.
Invariants: level-triggered: a controller that starts again continues from the record and the replicas. A rollout is
rolled back once, to settings that were rolled out completely; if there are none, or these are what fails, it stays as
it is, and this is reported. A complete rollout is never rolled back.
Owner: pure functions, for `reconciling.backends` and for the views of operators.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import Enum
from types import MappingProxyType
from typing import Final

from controller_service.core.desired.handler_code import is_rolled_back, template_of
from controller_service.core.desired.state import RolloutRecord
from controller_service.core.observed.replica_groups import ReplicaGroups, group_replicas
from controller_service.core.observed.state import ObservedReplica, ReplicaState
from controller_service.core.observed.transitions import LOOPING_AFTER, QUICK_DEATH_S
from controller_service.core.reconciling.rollout_bounds import most_dispensable_first, rollout_bounds
from slotmesh.spec.model import Backend
from slotmesh.units import format_duration

MIN_CALLS: Final = 20
"""Calls that new replicas must have ended before their failures are judged."""


@dataclass(frozen=True, slots=True)
class EndedCalls:
    """The calls that a replica has ended since its start."""

    total: int = 0
    failed: int = 0


def find_failure(
    replicas: Iterable[ObservedReplica],
    backend: Backend,
    template: str,
    now: float,
    *,
    ended_calls: Mapping[str, EndedCalls],
    began_at: float = float("-inf"),
    is_paused: bool = False,
) -> str:
    """Why the rollout should stop: the failure of its new replicas, for a person; empty if none is known.

    Only replicas that were started with the new settings are blamed. A crash loop takes `LOOPING_AFTER` deaths in each
    other's place, since one death may be bad luck. Deaths before the rollout began do not count, nor do replicas of an
    earlier rollout of the same settings that have ended or drain. Error rates are compared with those of the old
    replicas, and only after enough calls.

    `template` is theirs, `began_at` when the rollout began, seconds (monotonic); the deadline does not count for a
    rollout that is paused.
    """
    old: list[ObservedReplica] = []
    new: list[ObservedReplica] = []
    for replica in replicas:
        if replica.template != template:
            old.append(replica)
        elif replica.started_at >= began_at or not (replica.gone or replica.is_drain_requested):
            new.append(replica)
    for replica in new:
        if found := _crash_loop(replica, backend, now, began_at) or _unhealthy(replica):
            return found
        if not is_paused and deadline_left_s(replica, backend, now) <= 0.0:
            patience = format_duration(timedelta(seconds=backend.progress_deadline_s))
            waits_for = f": {replica.waits_for}" if replica.waits_for else ""
            return f"{replica.replica_id} was not ready within {patience}, the progress_deadline{waits_for}"
    return _too_many_errors(old, new, backend.max_error_rate, ended_calls)


def deadline_left_s(replica: ObservedReplica, backend: Backend, now: float) -> float:
    """How long a replica may still take to get ready; infinite where it has, or does not try any more."""
    is_trying = replica.state is ReplicaState.STARTING and not replica.gone and not replica.is_drain_requested
    return replica.started_at + backend.progress_deadline_s - now if is_trying else float("inf")


def _crash_loop(replica: ObservedReplica, backend: Backend, now: float, began_at: float) -> str:
    """A replica in whose place others have died, and that has died itself, or has not been ready for long yet."""
    long_s = max(QUICK_DEATH_S, backend.min_ready_s)
    if replica.is_drain_requested or (replica.ready_at is not None and now - replica.ready_at >= long_s):
        return ""
    starts = (
        (*replica.earlier_starts, replica.started_at) if replica.gone or replica.is_given_up else replica.earlier_starts
    )
    deaths = sum(at >= began_at for at in starts)
    if deaths < LOOPING_AFTER:
        return ""
    error = (replica.error.strip().splitlines() or [""])[-1]
    what = "starts failed" if replica.has_not_started else "replicas have died"
    return f"{deaths} {what} one after another, the newest so: {error or replica.last_exit or 'it ended'}"


def _unhealthy(replica: ObservedReplica) -> str:
    if not replica.is_unhealthy or replica.gone:
        return ""
    error = (replica.error.strip().splitlines() or ["three in a row have failed"])[-1]
    return f"the health checks of {replica.replica_id} fail: {error}"


def _too_many_errors(
    old: Iterable[ObservedReplica],
    new: Iterable[ObservedReplica],
    most: float,
    ended_calls: Mapping[str, EndedCalls],
) -> str:
    ended, before = _sum(new, ended_calls), _sum(old, ended_calls)
    if ended.total < MIN_CALLS:
        return ""
    rate, rate_before = (each.failed / max(1, each.total) for each in (ended, before))
    if rate - rate_before <= most:
        return ""
    text = f"{ended.failed} of {ended.total} calls at new replicas have failed ({rate:.1%})"
    return f"{text}, and {rate_before:.1%} of those at old ones; max_error_rate is {most:.1%}"


def _sum(replicas: Iterable[ObservedReplica], ended_calls: Mapping[str, EndedCalls]) -> EndedCalls:
    known = [ended_calls[it.replica_id] for it in replicas if it.replica_id in ended_calls]
    return EndedCalls(sum(it.total for it in known), sum(it.failed for it in known))


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutMoves:
    """The next moves of a rollout: how many new replicas to start, and which old ones should leave.

    While a rollout is under way, and apart from unexpected ends of replicas:
    - `max_surge` and `max_unavailable` are those of `rollout_bounds`: they follow from free devices, too;
    - at most `wanted` + `max_surge` processes are there, draining ones included, and unhealthy ones of the present
      settings not: these are replaced immediately;
    - no old replica is asked to leave if fewer than `wanted` - `max_unavailable` ready ones would be left: new ones
      count after `min_ready`, and neither new nor old ones while they are silent;
    - if fewer than `wanted` ready ones would be left, they leave only if new ones can be started (`are_ahead`);
    - a paused rollout starts nothing beyond `wanted` and has no old replica leave for a new one;
    - of a rollout that was rolled back all failed replicas leave once a good one takes calls: calls that wait are
      better than calls that fail.
    It comes to its end if each new replica gets ready, and each one that was asked to leaves.
    """

    start: int = 0
    """New replicas to start."""
    leaving: tuple[ObservedReplica, ...] = ()
    """Outdated replicas that should drain."""
    are_ahead: bool = False
    """They would leave before others have taken their places: only if these can be started."""
    again_after_s: float | None = None
    """When a new replica will have been ready for long enough; None if no step waits for that."""


def is_available(replica: ObservedReplica, now: float, min_ready_s: float) -> bool:
    """It takes calls, and has done so for long enough, as far as is known."""
    is_ready = replica.takes_calls and replica.suspect_since is None and replica.ready_at is not None
    return is_ready and now - (replica.ready_at or 0.0) >= min_ready_s


def plan_moves(
    groups: ReplicaGroups,
    backend: Backend,
    wanted: int,
    now: float,
    record: RolloutRecord | None,
    room: int | None = None,
) -> RolloutMoves:
    """`wanted`: how many should run; `record`: what the store has; `room`: as for `rollout_bounds`.

    Without a rollout, or once it is complete, draining replicas are replaced immediately.
    """
    current, outdated = groups.current, groups.outdated
    is_paused = record is not None and record.is_paused
    staying = len(current) + len(outdated) - groups.sick
    surge, unavailable = rollout_bounds(backend, wanted, staying, room)
    most = wanted + surge - staying
    if not is_rolled_out(record, backend):
        most -= len(groups.ending)
    if is_paused:
        most = min(most, wanted - staying)
    start = max(0, min(wanted - len(current), most))
    if not outdated:
        return RolloutMoves(start=start)
    # One whose health checks fail is worse than a new one that may fail later.
    min_ready_s = 0.0 if all(it.is_unhealthy for it in outdated) else backend.min_ready_s
    available = sum(is_available(it, now, min_ready_s) for it in current)
    serving = [it for it in outdated if is_available(it, now, 0.0)]
    spare = available + len(serving) - (wanted - unavailable)
    in_order = sorted(serving, key=most_dispensable_first)
    starting = [it for it in outdated if not it.takes_calls]
    is_replaced = available >= wanted or (
        is_going_back(record, backend) and any(is_available(it, now, 0.0) for it in current)
    )
    if is_paused:
        surplus = staying - wanted - surge
        leaving = [*starting, *in_order[: max(0, spare)]][: max(0, surplus)]
    elif is_replaced:
        leaving = [*outdated]
    else:
        leaving = [*starting, *in_order[: max(0, spare)]]
    left = available + sum(it not in leaving for it in serving)
    return RolloutMoves(
        start=start,
        leaving=tuple(leaving),
        are_ahead=bool(leaving) and left < wanted and not is_replaced,
        again_after_s=available_after_s(groups, backend, now),
    )


def available_after_s(groups: ReplicaGroups, backend: Backend, now: float) -> float | None:
    """When the next new replica will have been ready for long enough, seconds; None if no step waits for that."""
    ready_at = (it.ready_at for it in groups.current if it.takes_calls and it.ready_at is not None)
    left = (at + backend.min_ready_s - now for at in ready_at)
    return min((left_s for left_s in left if left_s > 0.0), default=None)


LOOK_EVERY_S: Final = 1.0
"""How often the failures of calls are looked at: replicas report them every second."""
NO_CALLS: Final[Mapping[str, EndedCalls]] = MappingProxyType({})


class RolloutPhase(Enum):
    """Where a rollout is. The values are those of `slotmesh.v1.RolloutPhase`."""

    COMPLETE = 1
    PROGRESSING = 2
    PAUSED = 3
    ROLLING_BACK = 4
    FAILING = 5
    """It does not get on, and there is nothing to go back to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutStep:
    """What follows from how the replicas do."""

    record: RolloutRecord | None = None
    """What to remember from now on; None: as it is."""
    goes_back_to: Backend | None = None
    """The settings that should be in force again; None if the rollout continues."""
    again_after_s: float | None = None


NO_STEP: Final = RolloutStep()
_CLOCKS_DIFFER_S: Final = 0.001
"""How exactly a time of day is known as a monotonic time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutProgress:
    """A rollout, as operators see it."""

    record: RolloutRecord
    phase: RolloutPhase
    wanted: int
    current: int
    """Replicas with the new settings, ready or not."""
    available: int
    """Those of them that have been ready for `min_ready`."""
    ready: int
    """Those of them that are ready, whether for `min_ready` or not."""
    outdated: int
    """Replicas with older settings, those that drain included."""
    trouble: str
    """What is wrong now; empty where nothing is known."""


def begun(record: RolloutRecord | None, backend: Backend, time_of_day_s: float) -> RolloutRecord:
    """The record of the rollout that is under way: the same one, unless the settings have changed since."""
    template = template_of(backend)
    if record is None:
        return RolloutRecord(backend=backend.name, template=template, since_s=time_of_day_s)
    if record.template == template:
        return record
    return replace(record, template=template, since_s=time_of_day_s, is_complete=False, why="", failed_at_s=0.0)


def _began_at(record: RolloutRecord, now: float, time_of_day_s: float) -> float:
    """When the rollout began, by the monotonic clock."""
    return now - max(0.0, time_of_day_s - record.since_s) - _CLOCKS_DIFFER_S


def is_rolled_out(record: RolloutRecord | None, backend: Backend) -> bool:
    """Whether the present settings have been in force at all replicas that should run."""
    return record is not None and record.is_complete and record.template == template_of(backend)


def is_going_back(record: RolloutRecord | None, backend: Backend) -> bool:
    """Whether the present settings replace others that have failed."""
    return record is not None and not record.is_complete and is_rolled_back(record, backend)


def follow(
    record: RolloutRecord | None,
    backend: Backend,
    wanted: int,
    replicas: Collection[ObservedReplica],
    now: float,
    *,
    time_of_day_s: float,
    ended_calls: Mapping[str, EndedCalls] = NO_CALLS,
) -> RolloutStep:
    """`record`: what the store has. `wanted`: how many replicas should run."""
    present = begun(record, backend, time_of_day_s)
    if present.is_complete or (record is None and not wanted):
        return NO_STEP
    groups = group_replicas(replicas, backend, now)
    if _is_done(groups, backend, wanted, now):
        return RolloutStep(record=_completed(present, backend, wanted))
    # The first rollout of a backend is remembered when it is complete: until then there is nothing to go back to.
    step = RolloutStep(
        record=present if record is not None and present is not record else None,
        again_after_s=available_after_s(groups, backend, now),
    )
    good = present.good
    if good is None or template_of(good) == present.template:
        return step
    why = find_failure(
        replicas,
        backend,
        present.template,
        now,
        ended_calls=ended_calls,
        began_at=_began_at(present, now, time_of_day_s),
        is_paused=present.is_paused,
    )
    if why:
        rolled_back = replace(
            present,
            template=template_of(good),
            since_s=time_of_day_s,
            is_paused=False,
            why=why,
            failed_at_s=time_of_day_s,
        )
        return RolloutStep(record=rolled_back, goes_back_to=good)
    due = [LOOK_EVERY_S] if step.again_after_s is None else [LOOK_EVERY_S, step.again_after_s]
    if not present.is_paused:
        due += [max(0.0, deadline_left_s(it, backend, now)) for it in groups.current]
    return replace(step, again_after_s=min(due))


def show_progress(
    record: RolloutRecord | None,
    backend: Backend,
    wanted: int,
    replicas: Collection[ObservedReplica],
    now: float,
    *,
    time_of_day_s: float,
    ended_calls: Mapping[str, EndedCalls] = NO_CALLS,
) -> RolloutProgress:
    """The rollout as operators see it."""
    present = begun(record, backend, 0.0)
    groups = group_replicas(replicas, backend, now)
    # Where no replica should run and none does, nothing is left to be rolled out, recorded or not.
    is_complete = present.is_complete or not (wanted or groups.current or groups.outdated or groups.ending)
    trouble, began_at = "", float("-inf")
    if record is not None:  # the first rollout has no record before its end, and no earlier one
        began_at = _began_at(begun(record, backend, time_of_day_s), now, time_of_day_s)
    if not is_complete:
        trouble = find_failure(
            replicas,
            backend,
            present.template,
            now,
            ended_calls=ended_calls,
            began_at=began_at,
            is_paused=present.is_paused,
        )
    return RolloutProgress(
        record=present,
        phase=RolloutPhase.COMPLETE if is_complete else _phase(present, trouble),
        wanted=wanted,
        current=len(groups.current),
        available=sum(is_available(it, now, backend.min_ready_s) for it in groups.current),
        ready=sum(is_available(it, now, 0.0) for it in groups.current),
        outdated=len(groups.outdated) + len(groups.ending),
        trouble=trouble,
    )


def _phase(record: RolloutRecord, trouble: str) -> RolloutPhase:
    """Of a rollout that is not complete."""
    if trouble:
        return RolloutPhase.FAILING
    if record.is_paused:
        return RolloutPhase.PAUSED
    return RolloutPhase.ROLLING_BACK if record.why else RolloutPhase.PROGRESSING


def _is_done(groups: ReplicaGroups, backend: Backend, wanted: int, now: float) -> bool:
    return not groups.outdated and sum(is_available(it, now, backend.min_ready_s) for it in groups.current) >= wanted


def _completed(record: RolloutRecord, backend: Backend, wanted: int) -> RolloutRecord:
    if not wanted:
        return replace(record, is_complete=True)  # no replica has proven these settings good
    is_other = record.good is not None and template_of(record.good) != record.template
    return replace(record, is_complete=True, good=backend, previous=record.good if is_other else record.previous)
