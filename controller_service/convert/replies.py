"""What requests that change the configuration are answered: of the revision that has the change, and what it was."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeVar, cast

from google.protobuf.message import Message

from controller_service.convert.changes import applied_to_wire, change_of, field_to_wire, wait_to_wire
from controller_service.core.planning import Plan
from slotmesh.v1 import controller_service_pb2 as pb
from slotmesh.v1 import route_service_pb2

ReplyT = TypeVar("ReplyT", bound=Message)


def reply_of(kind: type[ReplyT], revision: int, plan: Plan) -> ReplyT:
    """A message of that kind: the response of an rpc."""
    return cast("ReplyT", _REPLIES[kind](revision, plan))


def _rolled_back(revision: int, plan: Plan) -> pb.RollbackResponse:
    return pb.RollbackResponse(
        revision=revision,
        rolled_back_to=plan.restores or revision,
        created=plan.created,
        updated=plan.updated,
        deleted=plan.deleted,
        rolling=plan.rolling,
        waits=map(wait_to_wire, plan.waits),
        fields=map(field_to_wire, plan.fields),
    )


def _shifted(revision: int, plan: Plan) -> pb.ShiftTrafficResponse:
    (shift,) = plan.change.put_shifts
    return pb.ShiftTrafficResponse(revision=revision, steps=shift.steps)


def _changed(response: Callable[..., Message]) -> Callable[[int, Plan], Message]:
    """Of one resource."""
    return lambda revision, plan: response(revision=revision, change=change_of(plan))


_REPLIES: Final[Mapping[type[Message], Callable[[int, Plan], Message]]] = {
    pb.ApplyMeshResponse: applied_to_wire,
    pb.ShiftTrafficResponse: _shifted,
    pb.RollbackResponse: _rolled_back,
    **{it: _changed(it) for it in (pb.ApplyBackendResponse, pb.DeleteBackendResponse, pb.SetTrafficResponse)},
    **{it: _changed(it) for it in (pb.ApplyEndpointResponse, pb.DeleteEndpointResponse)},
    route_service_pb2.DeleteRouteResponse: _changed(route_service_pb2.DeleteRouteResponse),
    pb.EndShiftResponse: lambda revision, _: pb.EndShiftResponse(revision=revision),
    pb.UndoRolloutResponse: lambda revision, _: pb.UndoRolloutResponse(revision=revision),
}
