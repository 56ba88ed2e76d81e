"""On what terms a change is wanted, and what became of it."""

from __future__ import annotations

from controller_service.core.merging import FieldChange
from controller_service.core.planning import ChangeTerms, Plan, TrafficWaits
from controller_service.core.revisions import ChangeOrigin
from slotmesh.spec.model import InvalidSpec, Mistake
from slotmesh.v1 import controller_service_pb2 as pb
from slotmesh.v1 import route_service_pb2

ChangeRequest = (
    pb.ApplyMeshRequest
    | pb.ApplyBackendRequest
    | pb.DeleteBackendRequest
    | pb.ApplyEndpointRequest
    | pb.DeleteEndpointRequest
    | pb.SetTrafficRequest
    | pb.ShiftTrafficRequest
    | pb.EndShiftRequest
    | pb.RollbackRequest
    | route_service_pb2.DeleteRouteRequest
)


def terms_from_wire(request: ChangeRequest, origin: ChangeOrigin) -> ChangeTerms:
    """What every request says that changes the configuration."""
    return ChangeTerms(
        origin=origin,
        dry_run=request.dry_run,
        expected_revision=request.expected_revision if request.HasField("expected_revision") else None,
    )


def change_of(plan: Plan) -> pb.Change.ValueType:
    """What became of the one resource that a plan is about."""
    if plan.created:
        return pb.CHANGE_CREATED
    if plan.updated:
        return pb.CHANGE_UPDATED
    return pb.CHANGE_DELETED if plan.deleted else pb.CHANGE_UNCHANGED


def applied_to_wire(revision: int, plan: Plan) -> pb.ApplyMeshResponse:
    """What became of a whole mesh."""
    return pb.ApplyMeshResponse(
        revision=revision,
        created=plan.created,
        updated=plan.updated,
        unchanged=plan.unchanged,
        deleted=plan.deleted,
        fields=map(field_to_wire, plan.fields),
        conflicts=[
            pb.FieldConflict(subject=it.subject, field=it.field, applied=it.applied, live=it.live, wanted=it.wanted)
            for it in plan.conflicts
        ],
        rolling=plan.rolling,
        waits=map(wait_to_wire, plan.waits),
        warnings=plan.warnings,
    )


def field_to_wire(field: FieldChange) -> pb.FieldChange:
    return pb.FieldChange(subject=field.subject, field=field.field, before=field.before, after=field.after)


def wait_to_wire(wait: TrafficWaits) -> pb.TrafficWait:
    return pb.TrafficWait(endpoint=wait.endpoint, backends=wait.backends, deleted_afterwards=wait.deleted_afterwards)


def from_members(request: pb.AdoptStateRequest) -> bool:
    """Whether the configuration that members know counts. Raises InvalidSpec for a source that is none."""
    sources = {pb.STATE_SOURCE_MEMBERS: True, pb.STATE_SOURCE_STORE: False}
    if (choice := sources.get(request.source)) is None:
        raise InvalidSpec([Mistake("source", "must be STATE_SOURCE_MEMBERS or STATE_SOURCE_STORE")])
    return choice
