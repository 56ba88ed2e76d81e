"""How far a rollout is: when it begins, is complete, or has to be taken back.

Purpose: `(record, backend, replicas, now) -> step`: what to remember next, and the settings to go back to.
Invariants: level-triggered: a controller that starts again goes on from the record and the replicas that there are. A
rollout is taken back once, to settings that were rolled out completely; where there are none, or where these are what
fails, it stays as it is, and is told. While it is complete nothing is taken back.
Owner: pure functions, for `core.reconcile` and for those who tell operators.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from types import MappingProxyType
from typing import Final

from controller_service.core.observed import ObservedReplica
from controller_service.core.rollouts.failures import EndedCalls, deadline_left_s, find_failure
from controller_service.core.rollouts.groups import ReplicaGroups, group_replicas
from controller_service.core.rollouts.moves import available_after_s, is_available
from controller_service.core.rollouts.record import RolloutRecord
from controller_service.core.templates import template_of
from slotmesh.spec.model import Backend

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
    """The settings that should be in force again; None: it goes on."""
    again_after_s: float | None = None


NO_STEP: Final = RolloutStep()


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


def is_rolled_out(record: RolloutRecord | None, backend: Backend) -> bool:
    """Whether the present settings have been in force at all replicas that should run."""
    return record is not None and record.is_complete and record.template == template_of(backend)


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
    why = find_failure(replicas, backend, present.template, now, ended_calls=ended_calls, is_paused=present.is_paused)
    if why:
        taken_back = replace(
            present,
            template=template_of(good),
            since_s=time_of_day_s,
            is_paused=False,
            why=why,
            failed_at_s=time_of_day_s,
        )
        return RolloutStep(record=taken_back, goes_back_to=good)
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
    ended_calls: Mapping[str, EndedCalls] = NO_CALLS,
) -> RolloutProgress:
    """The rollout as operators see it."""
    present = begun(record, backend, 0.0)
    groups = group_replicas(replicas, backend, now)
    trouble = ""
    if not present.is_complete:
        trouble = find_failure(
            replicas, backend, present.template, now, ended_calls=ended_calls, is_paused=present.is_paused
        )
    return RolloutProgress(
        record=present,
        phase=_phase(present, trouble),
        wanted=wanted,
        current=len(groups.current),
        available=sum(is_available(it, now, backend.min_ready_s) for it in groups.current),
        outdated=len(groups.outdated) + len(groups.ending),
        trouble=trouble,
    )


def _phase(record: RolloutRecord, trouble: str) -> RolloutPhase:
    if record.is_complete:
        return RolloutPhase.COMPLETE
    if trouble:
        return RolloutPhase.FAILING
    if record.is_paused:
        return RolloutPhase.PAUSED
    return RolloutPhase.ROLLING_BACK if record.why else RolloutPhase.PROGRESSING


def _is_done(groups: ReplicaGroups, backend: Backend, wanted: int, now: float) -> bool:
    available = sum(is_available(it, now, backend.min_ready_s) for it in groups.current)
    return not groups.outdated and available >= wanted


def _completed(record: RolloutRecord, backend: Backend, wanted: int) -> RolloutRecord:
    if not wanted:
        return replace(record, is_complete=True)  # nobody has seen that these settings are good
    is_other = record.good is not None and template_of(record.good) != record.template
    return replace(record, is_complete=True, good=backend, previous=record.good if is_other else record.previous)
