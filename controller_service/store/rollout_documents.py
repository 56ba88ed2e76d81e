"""Rollouts as JSON documents, and back.

Invariants: as those of `documents`: what is read equals what was written; what cannot be read is a `BadDocument`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from controller_service.core.rollouts.record import RolloutRecord
from controller_service.store.bad_document import BadDocument
from controller_service.store.documents import Document, backend_document, backend_of, object_of

_ROLLOUT_FIELDS: Final[Mapping[str, type | tuple[type, ...]]] = {
    "template": str,
    "since_s": (int, float),
    "is_complete": bool,
    "is_paused": bool,
    "why": str,
    "failed_at_s": (int, float),
}


def rollout_document(record: RolloutRecord) -> Document:
    """A backend's newest rollout; the backend's name stands outside."""
    said = {name: getattr(record, name) for name in _ROLLOUT_FIELDS}
    known = {"good": record.good, "previous": record.previous}
    return {**said, **{name: None if it is None else backend_document(it) for name, it in known.items()}}


def rollout_from(name: str, document: object) -> RolloutRecord:
    """Raises BadDocument."""
    where = f"rollout of backend {name}"
    given = dict(object_of(where, document, known={*_ROLLOUT_FIELDS, "good", "previous"}))
    for each, kind in _ROLLOUT_FIELDS.items():
        if not isinstance(given.get(each), kind):
            raise BadDocument(f"{where}: {each} is {given.get(each)!r}")
    for each in ("good", "previous"):
        given[each] = None if given.get(each) is None else backend_of(name, given[each])
    return RolloutRecord(backend=name, **given)
