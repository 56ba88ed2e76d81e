"""The controller's reports about members, converted to the values that commands show.

Owner: pure functions.
"""

from __future__ import annotations

from datetime import UTC, datetime

from google.protobuf.timestamp_pb2 import Timestamp

from slotmesh.cli.snapshot import (
    ReplicaStatus,
    Revision,
    RevisionChange,
    RolloutStatus,
    RouterStatus,
    ScaleStatus,
    ShadowCount,
    ShiftStatus,
    StepCalls,
)
from slotmesh.convert.specification import seconds
from slotmesh.units import format_duration
from slotmesh.v1 import controller_service_pb2 as pb
from slotmesh.v1 import mesh_pb2


def replica_from_wire(wire: mesh_pb2.Replica) -> ReplicaStatus:
    return ReplicaStatus(
        replica_id=wire.replica_id,
        backend=wire.backend,
        state=_state_name(wire.state),
        address=wire.address,
        pid=wire.pid,
        max_ongoing=wire.max_ongoing,
        error=wire.error,
        start_time=_time(wire.start_time) if wire.HasField("start_time") else None,
        metrics_address=wire.metrics_address,
        warning=wire.warning,
        restart_count=wire.restart_count,
        last_exit=wire.last_exit,
        last_output=wire.last_output,
        end_reason=wire.end_reason,
        version=wire.version,
        handler_version=wire.handler_version,
        outdated=wire.outdated,
    )


def router_from_wire(wire: mesh_pb2.Router) -> RouterStatus:
    return RouterStatus(
        router_id=wire.router_id,
        address=wire.address,
        generation=wire.generation,
        revision=wire.revision,
        linked_replica_ids=frozenset(wire.linked_replica_ids),
        start_time=_time(wire.start_time) if wire.HasField("start_time") else None,
        metrics_address=wire.metrics_address,
        version=wire.version,
        end_reason=wire.end_reason,
        shadows={
            it.backend: ShadowCount(
                it.shadow_copies, it.shadow_drops, it.shadow_ended.failed + it.shadow_ended.unanswered
            )
            for it in wire.loads
            if it.shadow_copies
        },
    )


def revision_from_wire(wire: pb.ConfigurationRevision) -> Revision:
    return Revision(
        revision=wire.revision,
        base_revision=wire.base_revision,
        time=_time(wire.time) if wire.HasField("time") else None,
        who=wire.who,
        note=wire.note,
        changes=tuple(RevisionChange(it.subject, _change_name(it.change), tuple(it.fields)) for it in wire.changes),
    )


def decision_from_wire(wire: pb.ScaleDecision) -> ScaleStatus:
    return ScaleStatus(
        time=_time(wire.time) if wire.HasField("time") else None,
        from_replicas=wire.from_replicas,
        to_replicas=wire.to_replicas,
        reason=wire.reason,
        ready=wire.ready,
        starting=wire.starting,
        queued=wire.queued,
        ongoing=wire.ongoing,
        queue_time_s=seconds(wire.queue_time),
        routers=wire.routers,
        late_routers=wire.late_routers,
        silent_routers=wire.silent_routers,
    )


def rollout_from_wire(wire: pb.Rollout) -> RolloutStatus:
    return RolloutStatus(
        backend=wire.backend,
        phase=_phase_name(wire.phase),
        handler=wire.handler,
        version=wire.version,
        wanted=wire.wanted,
        current=wire.current,
        available=wire.available,
        outdated=wire.outdated,
        start_time=_time(wire.start_time) if wire.HasField("start_time") else None,
        trouble=wire.trouble,
        taken_back=wire.taken_back,
        taken_back_time=_time(wire.taken_back_time) if wire.HasField("taken_back_time") else None,
        paused=wire.paused,
    )


def shift_from_wire(wire: pb.TrafficShift) -> ShiftStatus:
    known = pb.ShiftPhase.values()
    phase = pb.ShiftPhase.Name(wire.phase).removeprefix("SHIFT_PHASE_") if wire.phase in known else str(wire.phase)
    return ShiftStatus(
        endpoint=wire.endpoint,
        phase=phase,
        from_weights=dict(wire.from_weights),
        to_weights=dict(wire.to_weights),
        step_number=wire.step_number,
        steps=wire.steps,
        every_s=seconds(wire.every),
        guards=tuple(map(_guard, wire.guards)),
        min_calls=wire.min_calls,
        start_time=_time(wire.start_time),
        step_time=_time(wire.step_time),
        end_time=_time(wire.end_time) if wire.HasField("end_time") else None,
        who=wire.who,
        reason=wire.reason,
        waits_for=wire.waits_for,
        figures=tuple(
            StepCalls(
                backend=it.backend,
                calls=it.calls,
                failed=it.failed,
                unanswered=it.unanswered,
                p99_s=seconds(it.p99) if it.HasField("p99") else None,
                is_shadow=it.is_shadow,
            )
            for it in wire.figures
        ),
        awaited_backends=tuple(wire.awaited_backends),
    )


def _guard(wire: pb.ShiftGuard) -> str:
    """A figure that a newer controller knows is shown by its number."""
    of = f"{wire.shadow}:" if wire.shadow else ""
    if wire.figure == pb.SHIFT_FIGURE_ERROR_RATE:
        return f"{of}error_rate={wire.max_error_rate:g}"
    limit = format_duration(wire.max_time.ToTimedelta())
    return f"{of}p99={limit}" if wire.figure == pb.SHIFT_FIGURE_P99 else f"{of}{wire.figure}={limit}"


def _phase_name(phase: int) -> str:
    """A phase that a newer controller knows is shown by its number."""
    known = pb.RolloutPhase.values()
    return pb.RolloutPhase.Name(phase).removeprefix("ROLLOUT_PHASE_") if phase in known else str(phase)  # type: ignore[arg-type]


def _change_name(change: int) -> str:
    """A change that a newer controller knows is shown by its number."""
    known = pb.Change.values()
    return pb.Change.Name(change).removeprefix("CHANGE_").lower() if change in known else str(change)  # type: ignore[arg-type]


def _state_name(state: int) -> str:
    """A state that a newer controller knows is shown by its number."""
    known = mesh_pb2.ReplicaState.values()
    return mesh_pb2.ReplicaState.Name(state).removeprefix("REPLICA_STATE_") if state in known else str(state)  # type: ignore[arg-type]


def _time(wire: Timestamp) -> datetime:
    return wire.ToDatetime(tzinfo=UTC)
