"""Rollouts as messages."""

from __future__ import annotations

from controller_service.convert.times import timestamp
from controller_service.core.rollouts.progress import RolloutProgress
from slotmesh.spec.model import Backend
from slotmesh.v1 import controller_service_pb2 as pb


def rollout_to_wire(backend: Backend, progress: RolloutProgress) -> pb.Rollout:
    record = progress.record
    return pb.Rollout(
        backend=backend.name,
        phase=progress.phase.value,  # type: ignore[arg-type]  # the enums share their numbers
        handler=backend.handler,
        version=backend.version,
        wanted=progress.wanted,
        current=progress.current,
        available=progress.available,
        outdated=progress.outdated,
        start_time=timestamp(record.since_s) if record.since_s else None,
        trouble=progress.trouble,
        taken_back=record.why,
        taken_back_time=timestamp(record.failed_at_s) if record.failed_at_s else None,
    )
