"""Status and headers of an answer of HTTP, which a handler has set, behind the payload of its result. Pure.

Purpose: they are each call's own, while results travel in batches. In the payload they are counted, cut into chunks,
kept and sent again with it; calls that do not use them pay nothing, and routers need not know of them.
Invariants: behind the result stands the head, its size in four bytes, the lowest first, and the mark of the call's
options, which nobody can guess who could have had a part in the result. Where the size cannot be true, there is none.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

MAX_HEAD_BYTES: Final = 64 * 1024
MIN_MARK_BYTES: Final = 16
MAX_MARK_BYTES: Final = 32
MAX_HEADERS: Final = 64
"""Of an answer, as a handler sets them."""
MAX_HEADER_BYTES: Final = 8 * 1024
"""Names and values of these."""
BODILESS: Final = frozenset({204, 304})
"""Statuses of answers that have no body, whatever the handler returns."""
_SIZE_BYTES: Final = 4
_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_VALUE: Final = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
_RESERVED: Final = frozenset(
    # Of one connection, which is not the handler's (RFC 9110, section 7.6.1).
    {"connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade"}
    # What frames the answer, or what the front itself says.
    | {"content-length", "date", "x-request-id", "proxy-authenticate", "proxy-authorization"}
)
_RESERVED_PREFIX: Final = "access-control-"
"""Of browsers, which ask the front (`--cors-origins`)."""


def with_head(payload: bytes, head: bytes, mark: bytes) -> bytes:
    """A result, and what was set for its answer."""
    return b"".join((payload, head, len(head).to_bytes(_SIZE_BYTES, "little"), mark))


def split_head(payload: bytes, mark: bytes) -> tuple[bytes, bytes | None]:
    """A result, and what was set for its answer; None: nothing was."""
    if not payload.endswith(mark):
        return payload, None
    end = len(payload) - len(mark) - _SIZE_BYTES
    size = int.from_bytes(payload[end : end + _SIZE_BYTES], "little") if end >= 0 else -1
    if not 0 <= size <= min(end, MAX_HEAD_BYTES):
        return payload, None
    return payload[: end - size], payload[end - size : end]


def head_problem(status: Any, headers: Iterable[tuple[Any, Any]]) -> str:
    """Why an answer cannot have this status and these headers; empty where it can."""
    if type(status) is not int or not 200 <= status <= 599:
        return f"status must be 200 to 599, got {status!r:.40}"
    size = 0
    for count, (name, value) in enumerate(headers, 1):
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            return f"headers: {name!r:.80} is not a header's name"
        lower = name.lower()
        if lower in _RESERVED or lower.startswith(_RESERVED_PREFIX):
            return f"headers: {lower:.80} is set by the HTTP front"
        if not isinstance(value, str) or not _VALUE.fullmatch(value):
            return f"headers: the value of {lower:.80} must be a str of Latin-1 without control characters"
        size += len(name) + len(value)
        if count > MAX_HEADERS or size > MAX_HEADER_BYTES:
            return f"headers: at most {MAX_HEADERS} with {MAX_HEADER_BYTES} bytes in all"
    return ""
