"""What an inference says of its call: by its parameters, and by the headers of all requests. Pure.

Invariants: what both say of one thing contradicts itself, but for times, of which the shorter one counts.
"""

from __future__ import annotations

from dataclasses import replace

from ingress_service.core.problems import refusal
from ingress_service.core.terms import PLAIN, RequestTerms
from slotmesh.oip.model import InferenceRequest
from slotmesh.oip.parameters import ParameterMeaning


def terms_with(terms: RequestTerms, meaning: ParameterMeaning) -> RequestTerms:
    """How the call is wanted. `terms`: by the headers. Raises RequestRefusal."""
    if meaning.ordering_key:
        _check(not terms.ordering_key, "X-Slotmesh-Ordering-Key and the parameter sequence_id")
        terms = replace(terms, ordering_key=meaning.ordering_key)
    if meaning.slo_s is not None:
        _check(terms.slo_s is None and terms.slo_at is None, "an SLO and the parameter priority")
        terms = replace(terms, slo_s=meaning.slo_s)
    if meaning.timeout_s is not None:
        shorter = meaning.timeout_s if terms.timeout_s is None else min(terms.timeout_s, meaning.timeout_s)
        terms = replace(terms, timeout_s=shorter)
    if meaning.metadata:
        metadata = dict(terms.metadata)
        for name, text in meaning.metadata.items():
            _check(name not in metadata, f"X-Slotmesh-Meta-{name[:64].title()} and the parameter {name[:64]}")
            metadata[name] = text
        terms = replace(terms, metadata=tuple(sorted(metadata.items())))
    return terms


def of_version(request: InferenceRequest, meaning: ParameterMeaning, terms: RequestTerms) -> InferenceRequest:
    """The request for one version, which says all by its parameters. Raises RequestRefusal."""
    if replace(terms, timeout_s=None) != PLAIN:
        raise refusal(400, "with a version, no X-Slotmesh- header is read but X-Slotmesh-Timeout: say it by parameters")
    if terms.timeout_s is None:
        return request
    timeout_s = terms.timeout_s if meaning.timeout_s is None else min(terms.timeout_s, meaning.timeout_s)
    return replace(request, parameters={**request.parameters, "timeout": max(1, round(timeout_s * 1e6))})


def _check(is_said_once: bool, what: str) -> None:
    if not is_said_once:
        raise refusal(400, f"{what} are both given: give one of them")
