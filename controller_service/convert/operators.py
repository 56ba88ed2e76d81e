"""The controller's state as operators get it: snapshots, events, rollouts, decisions on numbers, shifts.

Invariants: a response fits a message, however many replicas there are: those that do not fit are counted. Numbers of
replicas are of all of them.
Owner: pure functions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from controller_service.convert.checks import timestamp
from controller_service.convert.replicas import replica_load_to_wire, replica_to_wire, without_long_texts
from controller_service.convert.routers import backend_load_to_wire, endpoint_load_to_wire, router_to_wire
from controller_service.core.desired.shifts import Guard, GuardFigure, ShiftRecord
from controller_service.core.desired.state import Desired
from controller_service.core.event_log import EventKind, Notice
from controller_service.core.loads import CallEnds, RecentReports, RouterLoad, SampledLoad
from controller_service.core.observed.replica_groups import outdated_among
from controller_service.core.observed.state import (
    Observed,
    ObservedReplica,
    ObservedRouter,
    ReplicaState,
    ScaleDecision,
    wanted_replicas,
)
from controller_service.core.reconciling.endpoints import find_prospect
from controller_service.core.reconciling.rollouts import EndedCalls, RolloutProgress
from controller_service.core.reconciling.shift_planning import DEFAULT_MIN_CALLS, RequestedShift
from controller_service.core.reconciling.shift_steps import p99
from slotmesh.convert.same_names import message_of
from slotmesh.convert.specification import duration_to_wire, endpoint_to_wire, seconds
from slotmesh.spec.model import Backend, InvalidSpec, Prospect, SpecViolation
from slotmesh.v1 import controller_service_pb2 as pb
from slotmesh.v1 import mesh_pb2

MAX_REPLICA_BYTES: Final = 2 << 20
"""Of all replicas in a response."""
_ENDED: Final = (ReplicaState.STOPPED, ReplicaState.FAILED)


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownLoads:
    """Where the loads are that members have reported."""

    of_replica: Callable[[str], RecentReports[SampledLoad]]
    of_routers: Mapping[str, RecentReports[RouterLoad]]
    """By router."""
    ended_calls: Mapping[str, EndedCalls]
    """By replica."""


def snapshot_to_wire(
    desired: Desired,
    observed: Observed,
    loads: KnownLoads,
    wall_s: Callable[[float], float],
    *,
    now: float,
    launches: bool,
) -> pb.GetSnapshotResponse:
    """Without the newest table's version. `wall_s` makes seconds since 1970 of monotonic ones, as `now` is."""
    response = pb.GetSnapshotResponse(
        time=timestamp(wall_s(now)),
        endpoints=[endpoint_to_wire(desired.endpoints[name]) for name in sorted(desired.endpoints)],
        backends=[_summary(desired.backends[name], desired, observed, launches) for name in sorted(desired.backends)],
        routers=[
            _router(observed.routers[name], loads.of_routers.get(name), wall_s) for name in sorted(observed.routers)
        ],
    )
    is_outdated = outdated_among(desired.backends)
    size = 0
    replicas = sorted(observed.replicas(), key=lambda it: (it.backend, it.replica_id))
    for at, replica in enumerate(replicas):
        wire = _replica(replica, loads, wall_s, outdated=is_outdated(replica))
        size += wire.ByteSize()
        if size > MAX_REPLICA_BYTES:
            response.unlisted_replicas = len(replicas) - at
            break
        response.replicas.append(wire)
    return response


def _summary(backend: Backend, desired: Desired, observed: Observed, launches: bool) -> pb.BackendSummary:
    replicas = [*observed.replicas(backend.name)]
    ready = _count(it.shown_state is ReplicaState.READY and not it.gone for it in replicas)
    prospect = Prospect.UNKNOWN if ready else find_prospect(backend.name, desired, observed, launches=launches)
    has_number = launches or backend.name in observed.scales or backend.num_replicas is not None
    return pb.BackendSummary(
        name=backend.name,
        wanted_replicas=wanted_replicas(backend, observed) if has_number else None,
        ready_replicas=ready,
        live_replicas=_count(it.state not in _ENDED and not it.gone for it in replicas),
        failed_replicas=_count(it.state is ReplicaState.FAILED for it in replicas),
        restart_count=sum(it.restarts for it in replicas),
        prospect=mesh_pb2.Prospect.ValueType(prospect.value),
    )


def _count(flags: Iterable[bool]) -> int:
    return sum(flags)


def _replica(
    replica: ObservedReplica, loads: KnownLoads, wall_s: Callable[[float], float], *, outdated: bool
) -> pb.SampledReplica:
    reports = loads.of_replica(replica.replica_id)
    earlier, wire = reports.earlier, replica_to_wire(replica, wall_s, reports.newest, outdated=outdated)
    return pb.SampledReplica(
        replica=without_long_texts(wire), earlier_load=None if earlier is None else replica_load_to_wire(earlier)
    )


def _router(
    router: ObservedRouter, recent: RecentReports[RouterLoad] | None, wall_s: Callable[[float], float]
) -> pb.SampledRouter:
    newest = recent.newest if recent is not None else None
    earlier = recent.earlier if recent is not None else None
    at = recent.newest_at if recent is not None else None
    return pb.SampledRouter(
        router=router_to_wire(router, wall_s, newest.endpoints if newest is not None else ()),
        report_time=None if at is None else timestamp(wall_s(at)),
        earlier_loads=map(backend_load_to_wire, earlier.backends if earlier is not None else ()),
        earlier_endpoint_loads=map(endpoint_load_to_wire, earlier.endpoints if earlier is not None else ()),
    )


def event_to_wire(time_s: float, notice: Notice, cursor: str, *, missed: int) -> pb.WatchEventsResponse:
    """`time_s`: seconds since 1970."""
    kind = pb.EventKind.ValueType(notice.kind.value)
    return message_of(pb.WatchEventsResponse, notice, time=timestamp(time_s), kind=kind, missed=missed, cursor=cursor)


def wanted_notices(request: pb.WatchEventsRequest) -> Callable[[Notice], bool]:
    """Whether a watcher asked for a notice. Raises InvalidSpec where it asked for kinds that there are not."""
    known = {kind.value: kind for kind in EventKind}
    if unknown := sorted({*request.kinds} - known.keys()):
        raise InvalidSpec([SpecViolation("kinds", f"{unknown[0]} is no kind of events that this version knows")])
    kinds = frozenset(known[kind] for kind in request.kinds) or frozenset(EventKind)
    prefix = request.subject_prefix
    return lambda notice: notice.kind in kinds and notice.subject.startswith(prefix)


def rollout_to_wire(backend: Backend, progress: RolloutProgress) -> pb.Rollout:
    record = progress.record
    return message_of(
        pb.Rollout,
        progress,
        backend=backend.name,
        phase=progress.phase.value,
        handler=backend.handler,
        version=backend.version,
        start_time=timestamp(record.since_s) if record.since_s else None,
        taken_back=record.why,
        taken_back_time=timestamp(record.failed_at_s) if record.failed_at_s else None,
        paused=record.is_paused,
    )


def decision_to_wire(decision: ScaleDecision | None, wall_s: Callable[[float], float]) -> pb.ScaleDecision | None:
    """`wall_s` turns monotonic seconds into seconds since 1970."""
    if decision is None:
        return None
    figures = decision.figures
    return message_of(
        pb.ScaleDecision,
        figures,
        time=timestamp(wall_s(decision.at)),
        from_replicas=decision.before,
        to_replicas=decision.number,
        reason=decision.why,
        queue_time=duration_to_wire(figures.queue_time_s),
        late_routers=figures.late,
        silent_routers=figures.silent,
    )


def requested_shift_from_wire(request: pb.ShiftTrafficRequest) -> RequestedShift:
    """Raises InvalidSpec where a guard is of no figure that this version knows."""
    known = {figure.value: figure for figure in GuardFigure}
    if unknown := [(at, it.figure) for at, it in enumerate(request.guards) if it.figure not in known]:
        (at, figure), *_ = unknown
        raise InvalidSpec([SpecViolation(f"guards[{at}].figure", f"{figure} is no figure that this version knows")])
    return RequestedShift(
        endpoint=request.endpoint,
        weights=dict(request.weights),
        step=request.step,
        every_s=seconds(request.every),
        guards=tuple(_guard(known[it.figure], it) for it in request.guards),
        min_calls=request.min_calls or DEFAULT_MIN_CALLS,
    )


def shift_to_wire(
    shift: ShiftRecord, figures: Mapping[str, CallEnds], shadows: Mapping[str, CallEnds], waits_for: str
) -> pb.TrafficShift:
    """`figures` of its present step, by backend; `shadows`: those of copies of calls."""
    return message_of(
        pb.TrafficShift,
        shift,
        phase=shift.phase.value,
        from_weights=shift.before,
        to_weights=shift.target,
        step_number=shift.number,
        every=duration_to_wire(shift.every_s),
        guards=[_guard_to_wire(it) for it in shift.guards],
        start_time=timestamp(shift.began_s),
        step_time=timestamp(shift.since_s),
        end_time=timestamp(shift.ended_s) if shift.ended_s else None,
        reason=shift.why,
        waits_for=waits_for,
        awaited_backends=sorted(shift.awaits),
        figures=[
            *(_figures_to_wire(name, ends) for name, ends in figures.items()),
            *(_figures_to_wire(name, ends, is_shadow=True) for name, ends in shadows.items()),
        ]
        if shift.is_under_way
        else (),
    )


def _guard(figure: GuardFigure, wire: pb.ShiftGuard) -> Guard:
    limit = wire.max_error_rate if figure is GuardFigure.ERROR_RATE else seconds(wire.max_time)
    return Guard(figure, limit, wire.shadow)


def _guard_to_wire(guard: Guard) -> pb.ShiftGuard:
    if guard.figure is GuardFigure.ERROR_RATE:
        return pb.ShiftGuard(figure=pb.SHIFT_FIGURE_ERROR_RATE, max_error_rate=guard.limit, shadow=guard.shadow)
    return pb.ShiftGuard(figure=pb.SHIFT_FIGURE_P99, max_time=duration_to_wire(guard.limit), shadow=guard.shadow)


def _figures_to_wire(backend: str, ends: CallEnds, *, is_shadow: bool = False) -> pb.ShiftFigures:
    time = p99(ends)
    return message_of(
        pb.ShiftFigures,
        ends,
        backend=backend,
        is_shadow=is_shadow,
        calls=ends.total,
        p99=None if time is None or math.isinf(time) else duration_to_wire(time),
    )
