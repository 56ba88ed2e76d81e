"""Changes of the configuration: their terms and origin, their replies, and their history in pages.

A page token is the last revision of the page before: revisions that are added meanwhile move none to another page.
"""

from __future__ import annotations

import re
from typing import Any, Final, TypeVar
from urllib.parse import unquote

import grpc
from google.protobuf.message import Message

from controller_service.convert.checks import timestamp
from controller_service.core.desired.planning import ChangeTerms, Plan
from controller_service.core.desired.revisions import (
    ChangeOrigin,
    Resource,
    ResourceChange,
    RevisionRecord,
    changed_fields,
)
from controller_service.core.desired.state import Desired
from slotmesh.convert.same_names import message_of
from slotmesh.security.identity import caller_name, current_rpc
from slotmesh.spec.model import Backend, InvalidSpec, SpecViolation
from slotmesh.spec.rules import show
from slotmesh.v1 import controller_service_pb2 as pb
from slotmesh.v1 import route_service_pb2

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
    | pb.SetTrafficRequest
    | pb.ShiftTrafficRequest
    | pb.EndShiftRequest
    | pb.RollbackRequest
    | pb.PauseRolloutRequest
    | pb.ResumeRolloutRequest
    | pb.UndoRolloutRequest
    | pb.DrainReplicaRequest
    | pb.ForgetReplicaRequest
    | route_service_pb2.DeleteRouteRequest
)


def terms_from_wire(request: ChangeRequest, origin: ChangeOrigin) -> ChangeTerms:
    """The terms in every request that changes the configuration."""
    if isinstance(
        request,
        pb.PauseRolloutRequest
        | pb.ResumeRolloutRequest
        | pb.UndoRolloutRequest
        | pb.DrainReplicaRequest
        | pb.ForgetReplicaRequest,
    ):
        return ChangeTerms(origin=origin)  # these have none
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


def from_members(request: pb.AdoptStateRequest) -> bool:
    """Whether the configuration that members know counts. Raises InvalidSpec for a source that is none."""
    sources = {pb.STATE_SOURCE_MEMBERS: True, pb.STATE_SOURCE_STORE: False}
    if (choice := sources.get(request.source)) is None:
        raise InvalidSpec([SpecViolation("source", "must be STATE_SOURCE_MEMBERS or STATE_SOURCE_STORE")])
    return choice


ReplyT = TypeVar("ReplyT", bound=Message)


def reply_of(kind: type[ReplyT], revision: int, plan: Plan) -> ReplyT:
    """A message of that kind, the response of an rpc: it has those of the facts that it has fields for."""
    facts = {
        "revision": revision,
        "change": change_of(plan),
        "rolled_back_to": revision if plan.restores is None else plan.restores,
        "steps": plan.change.put_shifts[0].steps if plan.change.put_shifts else 0,
        "incarnations": [it.owner.incarnation for it in plan.change.put_orders],
    }
    return message_of(
        kind, plan, **{name: facts[name] for name in facts.keys() & kind.DESCRIPTOR.fields_by_name.keys()}
    )


PAGE_SIZE: Final = 100
"""Revisions in a page if the request states no size."""
MAX_PAGE_BYTES: Final = 1 << 20
_CHANGES: Final = {
    "created": pb.CHANGE_CREATED,
    "updated": pb.CHANGE_UPDATED,
    "deleted": pb.CHANGE_DELETED,
}


def page_of_revisions(request: pb.ListRevisionsRequest, desired: Desired) -> pb.ListRevisionsResponse:
    """The page that is asked for. Raises InvalidSpec."""
    if request.page_size < 0:
        raise InvalidSpec([SpecViolation("page_size", f"must be 0 or more, is {request.page_size}")])
    before = _revision_of_token(request.page_token) if request.page_token else None
    records = [it for it in reversed(desired.history) if before is None or it.revision < before]
    page, size = pb.ListRevisionsResponse(revision=desired.configured_at), 0
    for number, record in enumerate(records[: request.page_size or PAGE_SIZE], 1):
        wire = _record_to_wire(record)
        size += wire.ByteSize()
        if size > MAX_PAGE_BYTES and page.revisions:
            return page
        page.revisions.append(wire)
        page.next_page_token = str(record.revision) if number < len(records) else ""
    return page


def _record_to_wire(record: RevisionRecord) -> pb.ConfigurationRevision:
    origin = record.origin
    return message_of(
        pb.ConfigurationRevision,
        origin,
        revision=record.revision,
        base_revision=record.base,
        time=timestamp(origin.time_s) if origin.time_s else None,
        changes=map(_change_to_wire, record.changes),
    )


def _change_to_wire(change: ResourceChange) -> pb.ConfigurationChange:
    return pb.ConfigurationChange(
        subject=change.subject,
        change=_CHANGES[change.verb],
        fields=changed_fields(change),
        version=_version(change.after),
        previous_version=_version(change.before),
    )


def _version(resource: Resource | None) -> str:
    return resource.version if isinstance(resource, Backend) else ""


def _revision_of_token(token: str) -> int:
    if not (token.isascii() and token.isdecimal() and len(token) < 19):
        raise InvalidSpec([SpecViolation("page_token", f"must be a page's next_page_token, is {show(token)!r}")])
    return int(token)
