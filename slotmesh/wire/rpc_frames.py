"""Rpcs of users' own protos between router and replica: their content types, and how responses are framed.

Purpose: a response travels as its bytes, and what gRPC has beside responses (initial and trailing metadata) in the same
payload, framed as gRPC-Web does it: a byte that says what follows, its length in four bytes, and that. Pure.
Invariants: what is framed here is found again by `frames_in`; bytes of a peer that are no frames are a `BadFrames`.
"""

from __future__ import annotations

import binascii
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator
from typing import Final, TypeAlias

RPC: Final = "application/grpc+proto"
"""The payload is the one request, the result is frames."""
RPC_REQUESTS: Final = "application/grpc+proto;requests"
"""The payload is empty: requests come one by one, by RequestItems. The result, or each value, is frames."""
RPC_TYPES: Final = frozenset({RPC, RPC_REQUESTS})

MESH_SERVICES: Final = ("slotmesh.", "grpc.", "inference.GRPCInferenceService")
"""How full names of services begin that are the mesh's, and no user's own."""

MESSAGE: Final = 0x00
INITIAL: Final = 0x40
"""Initial metadata. gRPC-Web has none in its body."""
TRAILERS: Final = 0x80
"""Trailing metadata: not the end of the rpc, which says itself how it ended."""
HEAD_BYTES: Final = 5

MAX_METADATA_BYTES: Final = 4 * 1024
"""Of each of both, as a handler may set it: with our details it stays below the 16 KiB of an rpc's metadata."""

MAX_REQUESTS_AHEAD: Final = 64
"""Requests of one call that its handler has not taken, at most."""
MAX_REQUEST_BYTES_AHEAD: Final = 256 * 1024
"""The same in bytes: no more are sent once there are so many. One request always may be."""
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
    """The message in a payload that has nothing else; None where it has."""
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
