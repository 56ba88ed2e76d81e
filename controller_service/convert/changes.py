"""On what terms a change is wanted, and what became of it."""

from __future__ import annotations

from controller_service.core.planning import ChangeTerms, Plan
from slotmesh.v1 import controller_service_pb2 as pb

ChangeRequest = (
    pb.ApplyMeshRequest
    | pb.ApplyBackendRequest
    | pb.DeleteBackendRequest
    | pb.ApplyEndpointRequest
    | pb.DeleteEndpointRequest
    | pb.SetTrafficRequest
)


def terms_from_wire(request: ChangeRequest) -> ChangeTerms:
    """What every request says that changes the configuration."""
    return ChangeTerms(
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
