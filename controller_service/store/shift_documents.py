"""Shifts of traffic as JSON documents, and back.

Invariants: as those of `documents`: what is read equals what was written; what cannot be read is a `BadDocument`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any, Final, TypeVar

from controller_service.core.shifting.record import Guard, GuardFigure, ShiftPhase, ShiftRecord
from controller_service.store.bad_document import BadDocument
from controller_service.store.documents import Document

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
