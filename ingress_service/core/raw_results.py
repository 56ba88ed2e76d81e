"""Results whose handler has set a Content-Type of its own: bytes and texts go as they are. Pure.

Invariants: only the result of a method that is annotated as bytes or as a text is unwrapped, so that what is not known
of a method leaves the form of its result; a result that is not what its annotation states stays as it is.
"""

from __future__ import annotations

import binascii
from collections.abc import Generator
from typing import Final

import msgspec

from ingress_service.core.arguments import is_bytes, kinds_of
from ingress_service.core.media import JSON, OCTETS
from ingress_service.core.openapi import DescribedMethod
from ingress_service.core.problems import ResponseHead

STEP_BYTES: Final = 1024 * 1024
"""Of one step: a millisecond. Divisible by 4, so that the steps' base64 can be taken apart."""
_NULLS: Final = frozenset({b"null", b"\xc0"})


def has_own_type(head: ResponseHead, form: str) -> bool:
    """Whether the handler has set a Content-Type that is none of values. `form`: of the call."""
    own = next((value for name, value in head.lines if name == b"content-type"), b"").lower()
    return bool(own) and form != OCTETS and b"json" not in own and b"msgpack" not in own


def raw_result(form: str, result: bytes, method: DescribedMethod | None) -> Generator[None, None, bytes]:
    """The body of the answer, made in steps of about a millisecond. `method`: None if nothing is known of it."""
    if method is None or method.yields or (kind := _kind_of(method)) is None:
        return result
    if result in _NULLS:
        return b""
    try:
        if kind is str:
            text = msgspec.json.decode(result, type=str) if form == JSON else msgspec.msgpack.decode(result, type=str)
            return text.encode()
        if form != JSON:
            return msgspec.msgpack.decode(result, type=bytes)
        pieces: list[bytes] = []
        for at in range(1, len(result) - 1, STEP_BYTES):
            pieces.append(binascii.a2b_base64(result[at : min(at + STEP_BYTES, len(result) - 1)], strict_mode=True))
            yield
        return b"".join(pieces)
    except (msgspec.MsgspecError, ValueError):
        return result


def _kind_of(method: DescribedMethod) -> type[bytes | str] | None:
    """What the annotation of the result states, None of Python aside."""
    kinds = kinds_of(method.schema.get("result"), {"$defs": method.schema.get("$defs", {})})
    kinds = [kind for kind in kinds if kind.get("type") != "null"]
    if kinds and all(map(is_bytes, kinds)):
        return bytes
    return str if kinds and all(it.get("type") == "string" and not is_bytes(it) for it in kinds) else None
