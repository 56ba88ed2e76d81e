"""A payload, whole or in the parts in which it came.

A router that only passes a payload on never joins its parts: a copy of 64 MiB would block the loop for tens of
milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from slotmesh.wire.limits import CHUNK_BYTES


class PayloadParts:
    """A payload in parts. Its length is that of the payload, bytes."""

    __slots__ = ("_size", "parts")

    def __init__(self, parts: Sequence[bytes]) -> None:
        self.parts = parts
        self._size = sum(map(len, parts))

    def __len__(self) -> int:
        return self._size


class Announced:
    """Takes the place of a payload that is to come. Its length is that of the payload, bytes."""

    __slots__ = ("_size",)

    def __init__(self, size: int) -> None:
        self._size = size

    def __len__(self) -> int:
        return self._size


Payload = bytes | PayloadParts


def joined(payload: Payload) -> bytes:
    """The payload in one piece. A copy: for payloads that are not that large."""
    return payload if isinstance(payload, bytes) else b"".join(payload.parts)


def cut(payload: Payload) -> Iterator[tuple[int, bytes]]:
    """The chunks of a payload: where each starts, and its bytes. Each is cut when it is asked for."""
    if isinstance(payload, PayloadParts):
        at = 0
        for part in payload.parts:
            yield at, part
            at += len(part)
    else:
        for at in range(0, len(payload), CHUNK_BYTES):
            yield at, payload[at : at + CHUNK_BYTES]
