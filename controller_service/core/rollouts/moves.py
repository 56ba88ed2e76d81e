"""The next moves of a rollout: how many new replicas to start, and which old ones should leave.

Invariants: while a rollout is under way, and but for ends that nobody asked for,
- no more than `wanted` + `max_surge` processes are there, those that drain included, and unhealthy ones of the present
  settings not: what is broken is replaced at once;
- no old replica is asked to leave that would leave fewer than `wanted` - `max_unavailable` ready ones: new ones count
  after `min_ready`, and neither new nor old ones while they are silent;
- a rollout that is paused starts nothing beyond `wanted` and has no old replica leave for a new one.
It comes to its end where each new replica gets ready, and each one that was asked to leaves.
Owner: pure functions, for `core.reconcile`.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from controller_service.core.observed import ObservedReplica
from controller_service.core.rollouts.groups import ReplicaGroups
from slotmesh.spec.model import Backend


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutMoves:
    """What to do now."""

    start: int = 0
    """New replicas to start."""
    leaving: tuple[ObservedReplica, ...] = ()
    """Outdated replicas that should drain."""
    again_after_s: float | None = None
    """When a new replica will have been ready for long enough; None: nobody waits for that."""


def max_surge_of(backend: Backend, wanted: int) -> int:
    """Replicas beyond those wanted that may run."""
    return max(1, ceil(wanted / 4)) if backend.max_surge is None else backend.max_surge


def max_unavailable_of(backend: Backend) -> int:
    """By how many the ready replicas may be short."""
    if backend.max_unavailable is None:
        return 1 if backend.max_surge == 0 else 0
    return backend.max_unavailable


def is_available(replica: ObservedReplica, now: float, min_ready_s: float) -> bool:
    """It takes calls, and has done so for long enough, as far as is known."""
    is_ready = replica.takes_calls and replica.suspect_since is None and replica.ready_at is not None
    return is_ready and now - (replica.ready_at or 0.0) >= min_ready_s


def plan_moves(
    groups: ReplicaGroups,
    backend: Backend,
    wanted: int,
    now: float,
    *,
    is_paused: bool = False,
    is_complete: bool = False,
) -> RolloutMoves:
    """`wanted`: how many should run. Without a rollout (`is_complete`) those that drain are replaced at once."""
    current, outdated = groups.current, groups.outdated
    staying = len(current) + len(outdated) - groups.sick
    room = wanted + max_surge_of(backend, wanted) - staying
    if not is_complete:
        room -= len(groups.ending)
    if is_paused:
        room = min(room, wanted - staying)
    start = max(0, min(wanted - len(current), room))
    if not outdated:
        return RolloutMoves(start=start)
    # One whose health checks fail is worse than a new one that may fail later.
    min_ready_s = 0.0 if all(it.is_unhealthy for it in outdated) else backend.min_ready_s
    available = sum(is_available(it, now, min_ready_s) for it in current)
    serving = [it for it in outdated if is_available(it, now, 0.0)]
    spare = available + len(serving) - (wanted - max_unavailable_of(backend))
    most_dispensable_first = sorted(serving, key=lambda it: (not it.is_unhealthy, it.started_at, it.replica_id))
    starting = [it for it in outdated if not it.takes_calls]
    if is_paused:
        surplus = staying - wanted - max_surge_of(backend, wanted)
        leaving = [*starting, *most_dispensable_first[: max(0, spare)]][: max(0, surplus)]
    elif available >= wanted:
        leaving = [*outdated]
    else:
        leaving = [*starting, *most_dispensable_first[: max(0, spare)]]
    return RolloutMoves(start=start, leaving=tuple(leaving), again_after_s=available_after_s(groups, backend, now))


def available_after_s(groups: ReplicaGroups, backend: Backend, now: float) -> float | None:
    """When the next new replica will have been ready for long enough, seconds; None: nobody waits for that."""
    ready_at = (it.ready_at for it in groups.current if it.takes_calls and it.ready_at is not None)
    left = (at + backend.min_ready_s - now for at in ready_at)
    return min((left_s for left_s in left if left_s > 0.0), default=None)
