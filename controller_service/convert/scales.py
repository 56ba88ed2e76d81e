"""Decisions about numbers of replicas, as messages."""

from __future__ import annotations

from collections.abc import Callable

from controller_service.convert.times import timestamp
from controller_service.core.autoscaling.scales import ScaleDecision
from slotmesh.spec.wire import duration_to_wire
from slotmesh.v1 import controller_service_pb2 as pb


def decision_to_wire(decision: ScaleDecision | None, wall_s: Callable[[float], float]) -> pb.ScaleDecision | None:
    """`wall_s` turns monotonic seconds into seconds since 1970."""
    if decision is None:
        return None
    figures = decision.figures
    return pb.ScaleDecision(
        time=timestamp(wall_s(decision.at)),
        from_replicas=decision.before,
        to_replicas=decision.number,
        reason=decision.why,
        ready=figures.ready,
        starting=figures.starting,
        queued=figures.queued,
        ongoing=figures.ongoing,
        queue_time=duration_to_wire(figures.queue_time_s),
        routers=figures.routers,
        late_routers=figures.late,
        silent_routers=figures.silent,
    )
