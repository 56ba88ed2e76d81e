"""The terms of a store as JSON documents, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from controller_service.core.lineage import TERMS_KEPT, LeaderTerm
from controller_service.store.bad_document import BadDocument


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
