"""The history of the configuration in pages that fit a message.

A page token is the last revision of the page before: revisions that come meanwhile move none to another page.
"""

from __future__ import annotations

from typing import Final

from controller_service.convert.times import timestamp
from controller_service.core.desired import Desired
from controller_service.core.revisions import ResourceChange, RevisionRecord, changed_fields
from slotmesh.spec.model import InvalidSpec, Mistake
from slotmesh.spec.rules import show
from slotmesh.v1 import controller_service_pb2 as pb

PAGE_SIZE: Final = 100
"""Revisions in a page whose size nobody states."""
MAX_PAGE_BYTES: Final = 1 << 20
_CHANGES: Final = {
    "created": pb.CHANGE_CREATED,
    "updated": pb.CHANGE_UPDATED,
    "deleted": pb.CHANGE_DELETED,
}


def page_of_revisions(request: pb.ListRevisionsRequest, desired: Desired) -> pb.ListRevisionsResponse:
    """The page that is asked for. Raises InvalidSpec."""
    if request.page_size < 0:
        raise InvalidSpec([Mistake("page_size", f"must be 0 or more, is {request.page_size}")])
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
    return pb.ConfigurationRevision(
        revision=record.revision,
        base_revision=record.base,
        time=timestamp(origin.time_s) if origin.time_s else None,
        who=origin.who,
        note=origin.note,
        changes=map(_change_to_wire, record.changes),
    )


def _change_to_wire(change: ResourceChange) -> pb.ConfigurationChange:
    return pb.ConfigurationChange(subject=change.subject, change=_CHANGES[change.verb], fields=changed_fields(change))


def _revision_of_token(token: str) -> int:
    if not (token.isascii() and token.isdecimal() and len(token) < 19):
        raise InvalidSpec([Mistake("page_token", f"must be a page's next_page_token, is {show(token)!r}")])
    return int(token)
