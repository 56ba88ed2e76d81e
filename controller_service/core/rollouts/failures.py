"""Why a rollout should stop: what its new replicas did that they should not have done.

Invariants: only replicas that were started with the new settings are blamed; one that has died once may have had bad
luck, so a crash loop takes `LOOPING_AFTER` deaths in each other's place; error rates are compared with those of the old
replicas, and only where enough calls were made.
Owner: pure functions, for `core.rollouts.progress`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from controller_service.core.observed import ObservedReplica, ReplicaState
from controller_service.core.restarts import LOOPING_AFTER, QUICK_DEATH_S
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
    is_paused: bool = False,
) -> str:
    """What is wrong with the new replicas, for a person; empty: nothing that is known.

    `template` is theirs; the deadline does not count for a rollout that is paused.
    """
    old: list[ObservedReplica] = []
    new: list[ObservedReplica] = []
    for replica in replicas:
        (new if replica.template == template else old).append(replica)
    for replica in new:
        if found := _crash_loop(replica, backend, now) or _unhealthy(replica):
            return found
        if not is_paused and deadline_left_s(replica, backend, now) <= 0.0:
            patience = format_duration(timedelta(seconds=backend.progress_deadline_s))
            return f"{replica.replica_id} was not ready within {patience}, the progress_deadline"
    return _too_many_errors(old, new, backend.max_error_rate, ended_calls)


def deadline_left_s(replica: ObservedReplica, backend: Backend, now: float) -> float:
    """How long a replica may still take to get ready; infinite where it has, or does not try any more."""
    is_trying = replica.state is ReplicaState.STARTING and not replica.gone and not replica.is_told_to_drain
    return replica.started_at + backend.progress_deadline_s - now if is_trying else float("inf")


def _crash_loop(replica: ObservedReplica, backend: Backend, now: float) -> str:
    """A replica in whose place others have died, and that has died itself, or has not been ready for long yet."""
    long_s = max(QUICK_DEATH_S, backend.min_ready_s)
    if replica.is_told_to_drain or (replica.ready_at is not None and now - replica.ready_at >= long_s):
        return ""
    deaths = replica.restarts + (replica.gone or replica.is_given_up)
    if deaths < LOOPING_AFTER:
        return ""
    error = (replica.error.strip().splitlines() or [""])[-1]
    return f"{deaths} replicas have died one after another, the newest so: {error or replica.last_exit or 'it ended'}"


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
