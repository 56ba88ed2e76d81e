"""Events, rollouts, decisions on numbers of replicas, and shifts as operators get them.

Owner: pure functions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from controller_service.convert.checks import timestamp
from controller_service.core.desired.shifts import Guard, GuardFigure, ShiftRecord
from controller_service.core.event_log import EventKind, Notice
from controller_service.core.loads import CallEnds
from controller_service.core.observed.state import ScaleDecision
from controller_service.core.reconciling.rollouts import RolloutProgress
from controller_service.core.reconciling.shift_planning import DEFAULT_MIN_CALLS, RequestedShift
from controller_service.core.reconciling.shift_steps import p99
from slotmesh.convert.same_names import message_of
from slotmesh.convert.specification import duration_to_wire, seconds
from slotmesh.spec.model import Backend, InvalidSpec, SpecViolation
from slotmesh.spec.rules import show
from slotmesh.v1 import controller_service_pb2 as pb
from slotmesh.v1 import rollout_pb2
from slotmesh.v1 import traffic_shift_pb2 as shift_pb

RESOURCE_KINDS: Final = ("backend/", "endpoint/", "route/", "replica/", "router/", "controller/")
"""How the resources of events begin."""


def event_to_wire(time_s: float, notice: Notice, cursor: str, *, missed: int) -> pb.WatchEventsResponse:
    """`time_s`: seconds since 1970."""
    kind = pb.EventKind.ValueType(notice.kind.value)
    return message_of(
        *(pb.WatchEventsResponse, notice),
        time=timestamp(time_s),
        kind=kind,
        resource=notice.subject,
        missed=missed,
        cursor=cursor,
    )


def wanted_notices(request: pb.WatchEventsRequest) -> Callable[[Notice], bool]:
    """Whether a watcher asked for a notice. Raises InvalidSpec where it asked for kinds that there are not."""
    known = {kind.value: kind for kind in EventKind}
    if unknown := sorted({*request.kinds} - known.keys()):
        raise InvalidSpec([SpecViolation("kinds", f"{unknown[0]} is no kind of events that this version knows")])
    kinds = frozenset(known[kind] for kind in request.kinds) or frozenset(EventKind)
    prefix = request.resource_prefix
    if not any(prefix.startswith(it) or it.startswith(prefix) for it in RESOURCE_KINDS):
        text = f"{show(prefix)!r} begins with no kind of resource: {', '.join(RESOURCE_KINDS)}"
        raise InvalidSpec([SpecViolation("resource_prefix", text)])
    return lambda notice: notice.kind in kinds and notice.subject.startswith(prefix)


def rollout_to_wire(backend: Backend, progress: RolloutProgress) -> rollout_pb2.Rollout:
    record = progress.record
    return message_of(
        rollout_pb2.Rollout,
        progress,
        backend=backend.name,
        phase=progress.phase.value,
        handler=backend.handler,
        version=backend.version,
        start_time=timestamp(record.since_s) if record.since_s else None,
        problem=progress.trouble,
        rollback_reason=record.why,
        rollback_time=timestamp(record.failed_at_s) if record.failed_at_s else None,
        paused=record.is_paused,
    )


def decision_to_wire(
    decision: ScaleDecision | None, wall_s: Callable[[float], float]
) -> rollout_pb2.ScaleDecision | None:
    """`wall_s` turns monotonic seconds into seconds since 1970."""
    if decision is None:
        return None
    figures = decision.figures
    return message_of(
        rollout_pb2.ScaleDecision,
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
    """Raises InvalidSpec where a guard has no figure that this version knows, or lacks its limit."""
    if violations := [*_guard_violations(request)]:
        raise InvalidSpec(violations)
    return RequestedShift(
        endpoint=request.endpoint,
        weights=dict(request.weights),
        step=request.step,
        every_s=seconds(request.every),
        guards=tuple(_guard(GuardFigure(it.figure), it) for it in request.guards),
        min_calls=request.min_calls or DEFAULT_MIN_CALLS,
    )


def shift_to_wire(
    shift: ShiftRecord, figures: Mapping[str, CallEnds], shadows: Mapping[str, CallEnds], waits_for: str
) -> shift_pb.TrafficShift:
    """`figures` of its present step, by backend; `shadows`: those of copies of calls."""
    return message_of(
        shift_pb.TrafficShift,
        shift,
        phase=shift.phase.value,
        from_weights=shift.before,
        to_weights=shift.target,
        step_number=shift.number,
        every=duration_to_wire(shift.every_s),
        guards=[_guard_to_wire(it) for it in shift.guards],
        start_time=timestamp(shift.began_s),
        step_start_time=timestamp(shift.since_s),
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


_LIMITS: Final = {GuardFigure.ERROR_RATE.value: "max_error_rate", GuardFigure.P99.value: "max_time"}
"""By figure: the field that has its limit."""


def _guard_violations(request: pb.ShiftTrafficRequest) -> Iterator[SpecViolation]:
    for at, guard in enumerate(request.guards):
        if (limit := _LIMITS.get(guard.figure)) is None:
            yield SpecViolation(f"guards[{at}].figure", f"{guard.figure} is no figure that this version knows")
        elif guard.WhichOneof("limit") != limit:
            yield SpecViolation(f"guards[{at}].{limit}", "is required with this figure")


def _guard(figure: GuardFigure, wire: shift_pb.ShiftGuard) -> Guard:
    limit = wire.max_error_rate if figure is GuardFigure.ERROR_RATE else seconds(wire.max_time)
    return Guard(figure, limit, wire.shadow)


def _guard_to_wire(guard: Guard) -> shift_pb.ShiftGuard:
    if guard.figure is GuardFigure.ERROR_RATE:
        figure = shift_pb.SHIFT_FIGURE_ERROR_RATE
        return shift_pb.ShiftGuard(figure=figure, max_error_rate=guard.limit, shadow=guard.shadow)
    limit = duration_to_wire(guard.limit)
    return shift_pb.ShiftGuard(figure=shift_pb.SHIFT_FIGURE_P99, max_time=limit, shadow=guard.shadow)


def _figures_to_wire(backend: str, ends: CallEnds, *, is_shadow: bool = False) -> shift_pb.ShiftFigures:
    time = p99(ends)
    return message_of(
        shift_pb.ShiftFigures,
        ends,
        backend=backend,
        shadow=is_shadow,
        calls=ends.total,
        p99=None if time is None or math.isinf(time) else duration_to_wire(time),
    )
