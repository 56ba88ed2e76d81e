"""Shifts of traffic as messages, and what operators ask of them."""

from __future__ import annotations

import math
from collections.abc import Mapping

from controller_service.convert.times import timestamp
from controller_service.core.backend_load import CallEnds
from controller_service.core.shifting.judgement import p99
from controller_service.core.shifting.planning import DEFAULT_MIN_CALLS, SaidShift
from controller_service.core.shifting.record import Guard, GuardFigure, ShiftRecord
from slotmesh.spec.model import InvalidSpec, Mistake
from slotmesh.spec.wire import duration_to_wire, seconds
from slotmesh.v1 import controller_service_pb2 as pb


def said_shift_from_wire(request: pb.ShiftTrafficRequest) -> SaidShift:
    """Raises InvalidSpec where a guard is of no figure that this version knows."""
    known = {figure.value: figure for figure in GuardFigure}
    if unknown := [it.figure for it in request.guards if it.figure not in known]:
        raise InvalidSpec([Mistake("guards.figure", f"{unknown[0]} is no figure that this version knows")])
    return SaidShift(
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
    return pb.TrafficShift(
        endpoint=shift.endpoint,
        phase=shift.phase.value,  # type: ignore[arg-type]  # the enums share their numbers
        from_weights=shift.before,
        to_weights=shift.target,
        step_number=shift.number,
        steps=shift.steps,
        step=shift.step,
        every=duration_to_wire(shift.every_s),
        guards=[_guard_to_wire(it) for it in shift.guards],
        min_calls=shift.min_calls,
        start_time=timestamp(shift.began_s),
        step_time=timestamp(shift.since_s),
        end_time=timestamp(shift.ended_s) if shift.ended_s else None,
        who=shift.who,
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
    return pb.ShiftFigures(
        backend=backend,
        is_shadow=is_shadow,
        calls=ends.total,
        failed=ends.failed,
        unanswered=ends.unanswered,
        p99=None if time is None or math.isinf(time) else duration_to_wire(time),
    )
