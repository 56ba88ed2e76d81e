"""Lists in pages that fit a message.

Invariants: rows are sorted by a key of their own, and a page token has the key of the last row of its page: rows that
come or go meanwhile move no others to another page. A token also has a digest of its query: that of another query is
refused.
Owner: pure functions.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from bisect import bisect_right
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Any, Final, TypeVar

from google.protobuf.message import Message

from slotmesh.spec.model import InvalidSpec, SpecViolation
from slotmesh.spec.rules import show

PAGE_SIZE: Final = 1_000
"""Rows of a page if the request states no size."""
MAX_PAGE_BYTES: Final = 1 << 20
_DIGEST_BYTES: Final = 6

RowT = TypeVar("RowT")
ResponseT = TypeVar("ResponseT", bound=Message)


def fill_page(
    request: Any,
    response: ResponseT,
    field: str,
    rows: Sequence[tuple[str, RowT]],
    to_wire: Callable[[RowT], Message],
    *,
    page_size: int = PAGE_SIZE,
) -> ResponseT:
    """The response, with the rows of the requested page in `field`. Raises InvalidSpec.

    `rows` have their keys, and are sorted by them. `page_size` is used if the request states none.
    """
    if request.page_size < 0:
        raise InvalidSpec([SpecViolation("page_size", f"must be 0 or more, is {request.page_size}")])
    first = bisect_right(rows, _key_of_token(request), key=lambda row: row[0]) if request.page_token else 0
    page, size = getattr(response, field), 0
    for _, row in rows[first : first + (request.page_size or page_size)]:
        wire = to_wire(row)
        size += wire.ByteSize()
        if size > MAX_PAGE_BYTES and page:
            break
        page.append(wire)
    if page and first + len(page) < len(rows):
        key = rows[first + len(page) - 1][0]
        token: Any = response
        token.next_page_token = urlsafe_b64encode(_digest(request) + key.encode()).decode()
    return response


def _key_of_token(request: Any) -> str:
    """Raises InvalidSpec for a text that is no token, and for the token of another query."""
    try:
        token = urlsafe_b64decode(request.page_token.encode())
        if token[:_DIGEST_BYTES] == _digest(request):
            return token[_DIGEST_BYTES:].decode()
    except ValueError:
        pass  # refused below
    text = f"must be the next_page_token of a page of the same query, is {show(request.page_token)!r}"
    raise InvalidSpec([SpecViolation("page_token", text)])


def _digest(request: Any) -> bytes:
    """Of the fields that select rows."""
    query = type(request)()
    query.CopyFrom(request)
    query.ClearField("page_size")
    query.ClearField("page_token")
    content = query.DESCRIPTOR.full_name.encode() + b"\0" + query.SerializeToString(deterministic=True)
    return blake2b(content, digest_size=_DIGEST_BYTES).digest()
