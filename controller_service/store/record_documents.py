"""Rollouts, shifts, answered requests and terms as JSON documents, and back.

Invariants: as those of `documents`: what is read equals what was written; what cannot be read is a `BadDocument`.
"""

from __future__ import annotations

import binascii
from base64 import b64decode, b64encode
from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import Any, Final, TypeVar

from controller_service.core.desired.shifts import Guard, GuardFigure, ShiftPhase, ShiftRecord
from controller_service.core.desired.state import AnsweredRequest, AnsweredRequests, RolloutRecord
from controller_service.core.lineage import TERMS_KEPT, LeaderTerm
from controller_service.store.document_fields import BadDocument
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
    fields = {name: getattr(record, name) for name in _ROLLOUT_FIELDS}
    known = {"good": record.good, "previous": record.previous}
    return {**fields, **{name: None if it is None else backend_document(it) for name, it in known.items()}}


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


EnumT = TypeVar("EnumT", bound=Enum)

_NUMBER: Final = (int, float)
_PLAIN: Final[Mapping[str, type | tuple[type, ...]]] = {
    "step": _NUMBER,
    "every_s": _NUMBER,
    "min_calls": int,
    "number": int,
    "since_s": _NUMBER,
    "began_s": _NUMBER,
    "who": str,
    "why": str,
    "ended_s": _NUMBER,
}
_OTHERS: Final = frozenset({"before", "target", "guards", "phase", "awaits", "deletes"})


def shift_document(shift: ShiftRecord) -> Document:
    """An endpoint's newest shift; the endpoint's name stands outside."""
    return {
        **{name: getattr(shift, name) for name in _PLAIN},
        "before": dict(shift.before),
        "target": dict(shift.target),
        "guards": [
            {"figure": it.figure.name.lower(), "limit": it.limit, **({"shadow": it.shadow} if it.shadow else {})}
            for it in shift.guards
        ],
        "phase": shift.phase.name.lower(),
        # An older version reads the document if it has neither.
        **({"awaits": dict(shift.awaits)} if shift.awaits else {}),
        **({"deletes": [*shift.deletes]} if shift.deletes else {}),
    }


def shift_from(endpoint: str, document: object) -> ShiftRecord:
    """Raises BadDocument."""
    where = f"shift of endpoint {endpoint}"
    if not isinstance(document, dict):
        raise BadDocument(f"{where}: must be a JSON object")
    if unknown := sorted(document.keys() - _PLAIN.keys() - _OTHERS):
        raise BadDocument(f"{where}: this version of slotmesh knows no {', '.join(unknown)}")
    for name, kind in _PLAIN.items():
        if not isinstance(document.get(name), kind) or isinstance(document.get(name), bool):
            raise BadDocument(f"{where}: {name} is {document.get(name)!r}")
    guards = document.get("guards")
    if not isinstance(guards, list):
        raise BadDocument(f"{where}: `guards` must be a list")
    return ShiftRecord(
        endpoint=endpoint,
        before=_weights(f"{where}: before", document.get("before")),
        target=_weights(f"{where}: target", document.get("target")),
        guards=tuple(_guard(where, it) for it in guards),
        phase=_member(where, ShiftPhase, document.get("phase")),
        awaits=_texts_by_name(f"{where}: awaits", document.get("awaits", {})),
        deletes=tuple(_names(where, document.get("deletes", []))),
        **{name: document[name] for name in _PLAIN},
    )


def _guard(where: str, document: Any) -> Guard:
    if not isinstance(document, dict) or not isinstance(document.get("limit"), int | float):
        raise BadDocument(f"{where}: {document!r} is no guard")
    shadow = document.get("shadow", "")
    if not isinstance(shadow, str):
        raise BadDocument(f"{where}: {document!r} is no guard")
    return Guard(_member(where, GuardFigure, document.get("figure")), document["limit"], shadow)


def _weights(where: str, document: object) -> Mapping[str, float]:
    if not isinstance(document, dict) or not document:
        raise BadDocument(f"{where}: must be a JSON object with weights")
    for name, weight in document.items():
        if isinstance(weight, bool) or not isinstance(weight, int | float):
            raise BadDocument(f"{where}: the weight of {name} is no number")
    return document


def _names(where: str, names: object) -> list[str]:
    if not isinstance(names, list) or not all(isinstance(it, str) for it in names):
        raise BadDocument(f"{where}: `deletes` must be a list of names")
    return names


def _texts_by_name(where: str, document: object) -> Mapping[str, str]:
    if not isinstance(document, dict) or not all(isinstance(it, str) for it in document.values()):
        raise BadDocument(f"{where}: must be a JSON object with texts")
    return document


def _member(where: str, kind: type[EnumT], name: object) -> EnumT:
    for each in kind:
        if name == each.name.lower():
            return each
    raise BadDocument(f"{where}: this version of slotmesh knows no {name!r}")


def answer_document(answer: AnsweredRequest) -> dict[str, Any]:
    """The answered request; its key stands outside."""
    return {"digest": answer.digest, "time_s": answer.time_s, "reply": b64encode(answer.reply).decode()}


def answers_from(documents: Mapping[str, object]) -> AnsweredRequests:
    """By key, oldest first. Raises BadDocument."""
    answers = [_answer(key, document) for key, document in documents.items()]
    return MappingProxyType({it.key: it for it in sorted(answers, key=lambda it: it.time_s)})


def _answer(key: str, document: object) -> AnsweredRequest:
    where = f"answered request {key}"
    if not isinstance(document, dict):
        raise BadDocument(f"{where}: must be a JSON object")
    digest, time_s, reply = (document.get(name) for name in ("digest", "time_s", "reply"))
    if not isinstance(digest, str) or isinstance(time_s, bool) or not isinstance(time_s, int | float):
        raise BadDocument(f"{where}: `digest` must be a text, `time_s` a number")
    try:
        return AnsweredRequest(key=key, digest=digest, time_s=time_s, reply=b64decode(str(reply), validate=True))
    except binascii.Error as error:
        raise BadDocument(f"{where}: `reply` must be base64: {error}") from error


def term_document(term: LeaderTerm) -> dict[str, Any]:
    """The term; its id stands outside."""
    return {"first_revision": term.first_revision}


def terms_from(documents: Mapping[str, object]) -> tuple[LeaderTerm, ...]:
    """By id, in the order in which they began. Raises BadDocument."""
    terms: list[LeaderTerm] = []
    for term_id, document in documents.items():
        first = document.get("first_revision") if isinstance(document, dict) else None
        if isinstance(first, bool) or not isinstance(first, int):
            raise BadDocument(f"term {term_id}: `first_revision` must be a whole number, is {first!r}")
        terms.append(LeaderTerm(term_id, first))
    return tuple(sorted(terms, key=lambda it: (it.first_revision, it.term_id))[-TERMS_KEPT:])
