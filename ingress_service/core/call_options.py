"""The terms of a call besides its arguments: headers and query parameters with a name of ours. Pure.

Invariants: most requests have none, which costs a look at each header; an option is read wholly or refused with its
header's name; a query parameter means the same as its header, and both of one kind contradict each other.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Final

from ingress_service.core.problems import refusal
from slotmesh.spec.option_rules import key_problem, metadata_problem
from slotmesh.spec.rules import request_id_problem
from slotmesh.spec.tenants import tenant_problem
from slotmesh.units import MAX_DURATION_S, parse_duration

PREFIX: Final = b"x-slotmesh-"
_META: Final = b"x-slotmesh-meta-"
RESERVED_META: Final = ("slotmesh-", "grpc-", "authorization")
"""Names, or how they begin, of metadata that no client may set."""
QUERY_TERMS: Final = frozenset({"relative_slo_ms", "absolute_slo_ms"})
"""Query parameters that are terms, and no arguments."""
_QUOTED: Final = re.compile(r'"((?:[^"\\]|\\["\\])*)"')
_ESCAPED: Final = re.compile(r"\\(.)")
_OF_TENANT: Final = "tenant-"
"""How ids of calls begin whose keys are scoped: without a tenant, too, for no key to be that of a tenant's call."""
_MAX_MS: Final = 10**15
_MAX_RELATIVE_MS: Final = 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestTerms:
    """How a call is wanted. Can be compared, so that calls on the same terms share what is made of them."""

    slo_s: float | None = None
    slo_at: datetime | None = None
    timeout_s: float | None = None
    shard_key: str = ""
    affinity_key: str = ""
    model_id: str = ""
    ordering_key: str = ""
    tenant: str = ""
    idempotent: bool = False
    request_id: str = ""
    """What identifies the call, of its Idempotency-Key and its tenant."""
    metadata: tuple[tuple[str, str], ...] = ()


PLAIN: Final = RequestTerms()


def terms_of(headers: Iterable[tuple[bytes, bytes]], query: Iterable[tuple[str, str]] = ()) -> RequestTerms:
    """`headers`: those that begin with `PREFIX`, with names in lower case. Raises RequestRefusal."""
    given: dict[str, tuple[str, str]] = {}
    metadata: dict[str, str] = {}
    for name, value in headers:
        text = _text(name, value)
        if name.startswith(_META):
            key = name[len(_META) :].decode("ascii")
            if not key or key.startswith(RESERVED_META):
                raise refusal(400, f"{_shown(name)}: this name is reserved")
            if key in metadata:
                raise refusal(400, f"{_shown(name)}: is given twice")
            metadata[key] = text
            continue
        field = name.removeprefix(PREFIX).decode("ascii")
        if field not in _READERS:
            raise refusal(400, f"{_shown(name)}: there is no such header; there are {_KNOWN}")
        if field in given:
            raise refusal(400, f"{_shown(name)}: is given twice")
        given[field] = _shown(name), text
    for key, text in query:
        field = key.replace("_", "-")
        if field in given:
            raise refusal(400, f"{key}: is given twice")
        given[field] = key, text
    if "relative-slo-ms" in given and "absolute-slo-ms" in given:
        raise refusal(400, "relative_slo_ms and absolute_slo_ms are both given: give one of them")
    if problem := metadata_problem(metadata):
        raise refusal(400, f"X-Slotmesh-Meta-NAME: {problem}")
    terms = PLAIN if not metadata else RequestTerms(metadata=tuple(sorted(metadata.items())))
    for field, (named, text) in given.items():
        terms = _READERS[field](terms, named, text)
    return terms if not terms.request_id else _identified(terms)


def unrepeatable(terms: RequestTerms, kind: str) -> None:
    """Raises RequestRefusal for an Idempotency-Key where results of this kind are not kept."""
    if terms.request_id:
        raise refusal(400, f"Idempotency-Key: has no effect on {kind}, whose outcomes are not kept: leave it out")


def _relative(terms: RequestTerms, named: str, text: str) -> RequestTerms:
    return replace(terms, slo_s=_number(named, text, _MAX_RELATIVE_MS) / 1e3)


def _absolute(terms: RequestTerms, named: str, text: str) -> RequestTerms:
    try:
        return replace(terms, slo_at=datetime.fromtimestamp(_number(named, text, _MAX_MS) / 1e3, UTC))
    except (ValueError, OverflowError, OSError):
        raise refusal(400, f"{named}: is no time of day in milliseconds since 1970") from None


def _timeout(terms: RequestTerms, named: str, text: str) -> RequestTerms:
    try:
        timeout_s = parse_duration(text).total_seconds()
    except ValueError:
        raise refusal(400, f"{named}: write a duration with its unit, as 250ms, 30s or 2m") from None
    if timeout_s > MAX_DURATION_S:
        raise refusal(400, f"{named}: at most {MAX_DURATION_S:,} seconds, got {text}")
    return replace(terms, timeout_s=timeout_s)


def _shard_key(terms: RequestTerms, named: str, text: str) -> RequestTerms:
    return replace(terms, shard_key=_key(named, text))


def _affinity_key(terms: RequestTerms, named: str, text: str) -> RequestTerms:
    return replace(terms, affinity_key=_key(named, text))


def _model_id(terms: RequestTerms, named: str, text: str) -> RequestTerms:
    return replace(terms, model_id=_key(named, text))


def _ordering_key(terms: RequestTerms, named: str, text: str) -> RequestTerms:
    return replace(terms, ordering_key=_key(named, text))


def _key(named: str, text: str) -> str:
    if problem := key_problem(text):
        raise refusal(400, f"{named}: {problem}")
    return text


def _tenant(terms: RequestTerms, named: str, text: str) -> RequestTerms:
    if problem := tenant_problem(text):
        raise refusal(400, f"{named}: {problem}")
    return replace(terms, tenant=text)


def _idempotent(terms: RequestTerms, named: str, text: str) -> RequestTerms:
    if text not in {"true", "false"}:
        raise refusal(400, f"{named}: must be true or false")
    return replace(terms, idempotent=text == "true")


def _idempotency_key(terms: RequestTerms, _named: str, text: str) -> RequestTerms:
    """The draft of the IETF has a string of structured fields, in quotes; what clients send often has none."""
    key = text
    if text.startswith('"'):
        if not (quoted := _QUOTED.fullmatch(text)):
            raise refusal(400, "Idempotency-Key: the quotes do not end, or something follows them")
        key = _ESCAPED.sub(r"\1", quoted[1])
    if not key or (problem := request_id_problem(key)):
        raise refusal(400, f"Idempotency-Key: {problem if key else 'is empty'}")
    return replace(terms, request_id=key)


def _identified(terms: RequestTerms) -> RequestTerms:
    """Keys of different tenants, and of none, are independent.

    Keys that choose a replica cannot be kept beside one that does.
    """
    if not terms.ordering_key:
        for field, given in (("Shard-Key", terms.shard_key), ("Affinity-Key", terms.affinity_key)):
            if given:
                raise refusal(
                    400, f"X-Slotmesh-{field}: has no effect beside an Idempotency-Key: leave one of them out"
                )
    if not terms.tenant and not terms.request_id.startswith(_OF_TENANT):
        return terms
    scoped = blake2b(f"{terms.tenant}\0{terms.request_id}".encode(), digest_size=32).hexdigest()
    return replace(terms, request_id=f"{_OF_TENANT}{scoped}")


_READERS: Final = {
    "relative-slo-ms": _relative,
    "absolute-slo-ms": _absolute,
    "timeout": _timeout,
    "shard-key": _shard_key,
    "affinity-key": _affinity_key,
    "model-id": _model_id,
    "ordering-key": _ordering_key,
    "tenant": _tenant,
    "idempotent": _idempotent,
    "idempotency-key": _idempotency_key,
}
_KNOWN: Final = ", ".join(f"X-Slotmesh-{it.title()}" for it in _READERS) + ", X-Slotmesh-Meta-NAME"


def _number(named: str, text: str, most: int) -> float:
    """Milliseconds: digits, with a fraction or without."""
    whole, dot, fraction = text.partition(".")
    if not (text.isascii() and whole.isdigit() and (fraction.isdigit() or not dot)) or float(text) > most:
        raise refusal(400, f"{named}: must be milliseconds, a number of 0 … {most:,}")
    return float(text)


def _text(name: bytes, value: bytes) -> str:
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        raise refusal(400, f"{_shown(name)}: is no text in UTF-8") from None


def _shown(name: bytes) -> str:
    """A header's name as a message may repeat it."""
    return name[:80].decode("ascii", "replace").title()
