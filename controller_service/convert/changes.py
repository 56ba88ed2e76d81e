"""Changes of the configuration: their terms and origin, their replies, and their history in pages."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final, TypeVar
from urllib.parse import unquote

import grpc
from google.protobuf.message import Message

from controller_service.convert.checks import timestamp
from controller_service.convert.pages import fill_page
from controller_service.core.desired.planning import ChangeTerms, Plan
from controller_service.core.desired.revisions import (
    ChangeOrigin,
    Resource,
    ResourceChange,
    RevisionRecord,
    changed_fields,
    note_of,
)
from controller_service.core.desired.state import Desired
from slotmesh.convert.same_names import message_of
from slotmesh.security.identity import caller_name, current_rpc
from slotmesh.spec.model import Backend, InvalidSpec, SpecViolation
from slotmesh.spec.routes import route_subject
from slotmesh.spec.rules import show
from slotmesh.v1 import controller_service_pb2 as pb

CLIENT_KEY: Final = "slotmesh-client"
"""Metadata by which a program names itself. It is not checked: it is for people who read the history."""
_CLIENT: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_./ -]{0,63}")
_MAX_PEER_CHARS: Final = 128


def origin_of(context: grpc.aio.ServicerContext[Any, Any]) -> ChangeOrigin:
    """As `slotmesh at 127.0.0.1:52114`; if callers are authenticated, `operator/ops by slotmesh at ...`."""
    name = next((value for key, value in context.invocation_metadata() or () if key == CLIENT_KEY), "")
    client = name if isinstance(name, str) and _CLIENT.fullmatch(name) else "rpc"
    _, _, peer = unquote(context.peer()).partition(":")
    where = f"{client} at {peer[:_MAX_PEER_CHARS]}" if peer else client
    name = caller_name()
    who = f"{name} by {where}" if name else where
    return ChangeOrigin(who=who, identity=name, method=current_rpc())


ChangeRequest = (
    pb.ApplyMeshRequest
    | pb.ApplyBackendRequest
    | pb.DeleteBackendRequest
    | pb.ApplyEndpointRequest
    | pb.DeleteEndpointRequest
    | pb.ApplyHttpRouteRequest
    | pb.DeleteHttpRouteRequest
    | pb.SetTrafficRequest
    | pb.ShiftTrafficRequest
    | pb.RollbackRequest
    | pb.PauseRolloutRequest
    | pb.DrainReplicaRequest
    | pb.ForgetReplicaRequest
)


def terms_from_wire(request: ChangeRequest, origin: ChangeOrigin) -> ChangeTerms:
    """The terms in every request that changes the configuration."""
    if isinstance(request, pb.DrainReplicaRequest | pb.ForgetReplicaRequest):
        return ChangeTerms(origin=origin)  # these have none
    return ChangeTerms(
        origin=origin,
        validate_only=request.validate_only,
        expected_revision=request.expected_revision if request.HasField("expected_revision") else None,
        etags={subject: etag for subject, etag in _etags(request) if etag},
    )


def _etags(request: ChangeRequest) -> Iterator[tuple[str, str]]:
    """By subject: the etags that the resources of a request should have now; empty: any."""
    match request:
        case pb.ApplyMeshRequest():
            yield from ((f"backend/{it.name}", it.etag) for it in request.mesh.backends)
            yield from ((f"endpoint/{it.name}", it.etag) for it in request.mesh.endpoints)
            yield from ((route_subject(it.name), it.etag) for it in request.mesh.routes)
        case pb.ApplyBackendRequest():
            yield f"backend/{request.backend.name}", request.backend.etag
        case pb.ApplyEndpointRequest():
            yield f"endpoint/{request.endpoint.name}", request.endpoint.etag
        case pb.ApplyHttpRouteRequest():
            yield route_subject(request.route.name), request.route.etag
        case pb.DeleteBackendRequest():
            yield f"backend/{request.name}", request.etag
        case pb.DeleteEndpointRequest():
            yield f"endpoint/{request.name}", request.etag
        case pb.DeleteHttpRouteRequest():
            yield route_subject(request.name), request.etag
        case pb.SetTrafficRequest() | pb.ShiftTrafficRequest():
            yield f"endpoint/{request.endpoint}", request.etag
        case pb.RollbackRequest() | pb.PauseRolloutRequest() | pb.DrainReplicaRequest() | pb.ForgetReplicaRequest():
            pass


def change_of(plan: Plan) -> pb.Change.ValueType:
    """What became of the one resource that a plan is about."""
    if plan.created:
        return pb.CHANGE_CREATED
    if plan.updated:
        return pb.CHANGE_UPDATED
    return pb.CHANGE_DELETED if plan.deleted else pb.CHANGE_UNCHANGED


def from_members(request: pb.AdoptStateRequest) -> bool:
    """Whether the configuration that members know counts. Raises InvalidSpec for a source that is none."""
    sources = {pb.STATE_SOURCE_MEMBERS: True, pb.STATE_SOURCE_STORE: False}
    if (choice := sources.get(request.source)) is None:
        raise InvalidSpec([SpecViolation("source", "must be STATE_SOURCE_MEMBERS or STATE_SOURCE_STORE")])
    return choice


ReplyT = TypeVar("ReplyT", bound=Message)


def reply_of(kind: type[ReplyT], revision: int, plan: Plan, *, validate_only: bool = False) -> ReplyT:
    """A message of that kind, the response of an rpc: it has those of the facts that it has fields for."""
    facts = {
        "revision": revision,
        "change": change_of(plan),
        "rolled_back_to": plan.restores,
        "steps": plan.change.put_shifts[0].steps if plan.change.put_shifts else 0,
        "weights": [*_steps(plan)],
        "incarnations": [it.owner.incarnation for it in plan.change.put_orders],
        "operations": [] if validate_only else _operations(revision, plan),
    }
    return message_of(
        kind, plan, **{name: facts[name] for name in facts.keys() & kind.DESCRIPTOR.fields_by_name.keys()}
    )


def _operations(revision: int, plan: Plan) -> list[str]:
    """What follows from a change, by the names of `core.reconciling.operations`."""
    if orders := plan.change.put_orders:
        return [f"drain/{it.owner.replica_id}@{it.owner.incarnation}" for it in orders]
    changed = (it.removeprefix("backend/") for it in (*plan.created, *plan.updated) if it.startswith("backend/"))
    resumed = (it.backend for it in plan.change.put_rollouts if not it.is_paused)
    backends = dict.fromkeys([*changed, *resumed])
    begun = (it.endpoint for it in plan.change.put_shifts if it.is_under_way)  # one that ends would be a failure
    shifted = dict.fromkeys([*(it.endpoint for it in plan.waits), *begun])
    rollouts, shifts = (f"rollout/{it}@{revision}" for it in backends), (f"shift/{it}" for it in shifted)
    return [f"revision/{revision}", *rollouts, *shifts]


_MAX_WEIGHTS: Final = 10_000
"""Of all steps of a shift, in a response."""


def _steps(plan: Plan) -> Iterator[pb.ShiftStep]:
    for shift in plan.change.put_shifts[:1]:
        if shift.steps * len(shift.backends) <= _MAX_WEIGHTS:
            yield from (pb.ShiftStep(weights=shift.weights(number)) for number in range(1, shift.steps + 1))


PAGE_SIZE: Final = 100
"""Revisions in a page if the request states no size."""
_LAST: Final = 2**63
"""Above all revisions."""
_CONFIGURED: Final = ("backend/", "endpoint/", "route/")
_CHANGES: Final = {
    "created": pb.CHANGE_CREATED,
    "updated": pb.CHANGE_UPDATED,
    "deleted": pb.CHANGE_DELETED,
}


def page_of_revisions(request: pb.ListRevisionsRequest, desired: Desired) -> pb.ListRevisionsResponse:
    """The page that is asked for, newest first. Raises InvalidSpec."""
    wanted = request.resource
    if wanted and not wanted.startswith(_CONFIGURED):
        text = f"must be backend/NAME, endpoint/NAME or route/PATH, is {show(wanted)!r}"
        raise InvalidSpec([SpecViolation("resource", text)])
    rows = [
        (f"{_LAST - it.revision:020}", it)
        for it in reversed(desired.history)
        if not wanted or any(change.subject == wanted for change in it.changes)
    ]
    page = pb.ListRevisionsResponse(revision=desired.configured_at)
    return fill_page(request, page, "revisions", rows, _record_to_wire, page_size=PAGE_SIZE)


def _record_to_wire(record: RevisionRecord) -> pb.ConfigurationRevision:
    origin = record.origin
    return message_of(
        pb.ConfigurationRevision,
        replace(origin, note=note_of(record)),
        revision=record.revision,
        base_revision=record.base,
        time=timestamp(origin.time_s) if origin.time_s else None,
        changes=map(_change_to_wire, record.changes),
    )


def _change_to_wire(change: ResourceChange) -> pb.ConfigurationChange:
    return pb.ConfigurationChange(
        resource=change.subject,
        change=_CHANGES[change.verb],
        fields=changed_fields(change),
        version=_version(change.after),
        previous_version=_version(change.before),
    )


def _version(resource: Resource | None) -> str:
    return resource.version if isinstance(resource, Backend) else ""
