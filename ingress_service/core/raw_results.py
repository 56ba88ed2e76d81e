"""Results whose handler has set a Content-Type of its own: bytes and texts go as they are. Pure.

Invariants: only the result of a method that is annotated as bytes or as a text is unwrapped, so that what is not known
of a method leaves the form of its result; a result that is not what its annotation states stays as it is.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Generator
from typing import Final

import msgspec

from ingress_service.core.arguments import is_bytes, kinds_of
from ingress_service.core.media import JSON, OCTETS
from ingress_service.core.openapi import DescribedMethod
from ingress_service.core.problems import ResponseHead

STEP_BYTES: Final = 1024 * 1024
"""Of one step: a millisecond. Divisible by 4, so that the steps' base64 can be taken apart."""
_ESCAPE: Final = 6
"""Characters of `\\u20ac`."""
_LOW_SURROGATE: Final = re.compile(rb"\\u[dD][c-fC-F]")
"""Of a character beyond U+FFFF, behind its other half."""
_NULLS: Final = frozenset({b"null", b"\xc0"})


def has_own_type(head: ResponseHead, form: str) -> bool:
    """Whether the handler has set a Content-Type that is none of values. `form`: of the call."""
    own = next((value for name, value in head.lines if name == b"content-type"), b"").partition(b";")[0].strip().lower()
    return own != b"" and form != OCTETS and not own.endswith((b"/json", b"+json", b"msgpack"))


def raw_result(form: str, result: bytes, method: DescribedMethod | None) -> Generator[None, None, bytes]:
    """The body of the answer, made in steps of about a millisecond. `method`: None if nothing is known of it."""
    if method is None or method.yields or (kind := _kind_of(method)) is None:
        return result
    if result in _NULLS:
        return b""
    try:
        if form != JSON:
            value = msgspec.msgpack.decode(result, type=kind)
            return value.encode() if isinstance(value, str) else value
        if result[:1] != b'"':
            return result
        pieces: list[bytes] = []
        at, end = 1, len(result) - 1
        while at < end:
            until = min(at + STEP_BYTES, end)
            if kind is bytes:
                pieces.append(binascii.a2b_base64(result[at:until], strict_mode=True))
            else:
                until = end if until == end else _before_escape(result, at, until)
                pieces.append(msgspec.json.decode(b'"%b"' % result[at:until], type=str).encode())
            at = until
            yield
        return b"".join(pieces)
    except (msgspec.MsgspecError, ValueError):
        return result


def _before_escape(text: bytes, begin: int, end: int) -> int:
    """The last place up to `end` where JSON text can be cut: inside of no escape, and of no character."""
    while text[end] & 0xC0 == 0x80:
        end -= 1
    if (last := text.rfind(b"\\", end - _ESCAPE, end)) < 0:
        return end
    backslashes = begin + len(text[begin : last + 1].rstrip(b"\\"))
    last = backslashes + (last - backslashes) // 2 * 2
    return last - _ESCAPE if _LOW_SURROGATE.match(text, last) else last


def _kind_of(method: DescribedMethod) -> type[bytes | str] | None:
    """What the annotation of the result states, None of Python aside."""
    kinds = kinds_of(method.schema.get("result"), {"$defs": method.schema.get("$defs", {})})
    kinds = [kind for kind in kinds if kind.get("type") != "null"]
    if kinds and all(map(is_bytes, kinds)):
        return bytes
    return str if kinds and all(it.get("type") == "string" and not is_bytes(it) for it in kinds) else None
