"""Payloads with more than a result in them: responses of users' own rpcs, and results with an HTTP status and headers.

An rpc of a user's own proto: its response travels as bytes, together with its initial and trailing metadata, in frames
as in gRPC-Web: one byte for the kind, four for the length, then the content.
A call by HTTP: status and headers that a handler sets for its response follow the result: they belong to one call, and
results travel in batches. In the payload they are counted, cut into chunks, kept and sent again with it; other calls
pay nothing, and routers need not support them.
Invariants: `frames_in` parses what `framed` makes; invalid bytes of a peer raise `BadFrames`. Behind a result follow
the head, its size (four bytes, little-endian), and the mark of the call's options, which cannot be guessed by the
author of a result. If the size is impossible, there is no head. Pure.
"""

from __future__ import annotations

import binascii
import re
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator
from typing import Any, Final, TypeAlias

RPC: Final = "application/grpc+proto"
"""The payload is the one request, the result is frames."""
RPC_REQUESTS: Final = "application/grpc+proto;requests"
"""The payload is empty: requests arrive one by one, by RequestItems. The result, or each value, is frames."""
RPC_TYPES: Final = frozenset({RPC, RPC_REQUESTS})

MESH_SERVICES: Final = ("slotmesh.", "grpc.", "inference.GRPCInferenceService")
"""Full names of services with this prefix are the mesh's own, not a user's."""

MESSAGE: Final = 0x00
INITIAL: Final = 0x40
"""Initial metadata. gRPC-Web has none in its body."""
TRAILERS: Final = 0x80
"""Trailing metadata. It is not the end of the rpc, which has an outcome of its own."""
HEAD_BYTES: Final = 5

MAX_METADATA_BYTES: Final = 4 * 1024
"""Of each of both, as a handler may set it: with our details it stays below the 16 KiB of an rpc's metadata."""

MAX_REQUESTS_AHEAD: Final = 64
"""Requests of one call that its handler has not taken, at most."""
MAX_REQUEST_BYTES_AHEAD: Final = 256 * 1024
"""The same in bytes: no more requests are sent above this. One request always may be."""
MAX_REQUEST_FRAME_BYTES: Final = 256 * 1024
"""Of requests in one frame; larger ones are cut."""

MetadataPairs: TypeAlias = "tuple[tuple[str, str | bytes], ...]"
"""Keys are lower case; those that end with `-bin` have bytes."""


class BadFrames(ValueError):
    """Bytes that are no frames, or no metadata."""


def framed(kind: int, content: bytes) -> bytes:
    """One frame."""
    return b"%c%s%s" % (kind, len(content).to_bytes(4, "big"), content)


def message_alone(payload: bytes) -> bytes | None:
    """The message of a payload that has nothing else; None for other payloads."""
    if payload[:1] == b"\x00" and int.from_bytes(payload[1:HEAD_BYTES], "big") == len(payload) - HEAD_BYTES:
        return payload[HEAD_BYTES:]
    return None


def frames_in(payload: bytes) -> Iterator[tuple[int, bytes]]:
    """The frames of a payload, in order. Raises BadFrames."""
    at, end = 0, len(payload)
    while at < end:
        begin = at + HEAD_BYTES
        size = int.from_bytes(payload[at + 1 : begin], "big")
        if begin + size > end:
            raise BadFrames(f"a frame of {size} bytes where {max(0, end - begin)} are left")
        yield payload[at], payload[begin : begin + size]
        at = begin + size


def metadata_to_bytes(metadata: Iterable[tuple[str, str | bytes]]) -> bytes:
    """Metadata as lines of a header; the keys and values are sound."""
    return b"".join(
        b"%s: %s\r\n" % (key.encode(), b64encode(value) if isinstance(value, bytes) else value.encode())
        for key, value in metadata
    )


def metadata_from_bytes(raw: bytes) -> MetadataPairs:
    """Metadata of lines. Raises BadFrames."""
    pairs: list[tuple[str, str | bytes]] = []
    try:
        for line in raw.decode("ascii").split("\r\n"):
            key, colon, value = line.partition(": ")
            if not line:
                continue
            if not colon:
                raise BadFrames("a line of metadata without a colon")
            pairs.append((key, b64decode(value, validate=True) if key.endswith("-bin") else value))
    except (UnicodeDecodeError, binascii.Error) as error:
        raise BadFrames(f"metadata that is none: {error}") from error
    return tuple(pairs)


# -- HTTP status and headers of a result -------------------------------------------------------------------------------
MAX_HEAD_BYTES: Final = 64 * 1024
MIN_MARK_BYTES: Final = 16
MAX_MARK_BYTES: Final = 32
MAX_HEADERS: Final = 64
"""Of a response, as set by a handler."""
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
    # Those that frame the response, or that the front sets itself.
    | {"content-length", "date", "x-request-id", "proxy-authenticate", "proxy-authorization"}
)
_RESERVED_PREFIX: Final = "access-control-"
"""Of browsers' CORS requests, which the front answers (`--cors-origins`)."""


def with_head(payload: bytes, head: bytes, mark: bytes) -> bytes:
    """A result, followed by the head for its response."""
    return b"".join((payload, head, len(head).to_bytes(_SIZE_BYTES, "little"), mark))


def split_head(payload: bytes, mark: bytes) -> tuple[bytes, bytes | None]:
    """A result, and the head for its response; None: there is none."""
    if not payload.endswith(mark):
        return payload, None
    end = len(payload) - len(mark) - _SIZE_BYTES
    size = int.from_bytes(payload[end : end + _SIZE_BYTES], "little") if end >= 0 else -1
    if not 0 <= size <= min(end, MAX_HEAD_BYTES):
        return payload, None
    return payload[: end - size], payload[end - size : end]


def remarked(payload: bytes, mark: bytes, other: bytes) -> bytes:
    """A result with the mark of another call, in place of the one that it was made for; empty: without the head."""
    result, head = split_head(payload, mark)
    if head is None:
        return payload
    return with_head(result, head, other) if other else result


def head_problem(status: Any, headers: Iterable[tuple[Any, Any]]) -> str:
    """Why a response cannot have this status and these headers; empty if it can."""
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
