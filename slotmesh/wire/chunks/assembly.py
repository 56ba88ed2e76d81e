"""Chunks on their way to become a payload again.

Invariants: chunks of a payload come in order, without gap and without overlap, and not too small; anything else is the
sender's mistake and raises. Memory is taken as bytes arrive, not as they are announced.
Owner: the reader of the stream.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from io import BytesIO

from slotmesh.wire.chunks.payload import PayloadParts
from slotmesh.wire.limits import CHUNK_BYTES, MIN_CHUNK_BYTES


class BadChunk(ValueError):
    """A chunk that does not continue its payload. Says which field, and what was expected."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field


class Assembly(ABC):
    """One payload of `total` bytes that is under way."""

    __slots__ = ("least", "received", "total")

    def __init__(self, total: int, *, least: int = MIN_CHUNK_BYTES) -> None:
        """`least`: bytes of each chunk but the last; 0 for a sender that is trusted."""
        self.total = total
        self.least = least
        self.received = 0

    def add(self, offset: int, total: int, data: bytes) -> bool:
        """The next chunk. Returns whether the payload is complete.

        Raises:
            BadChunk: it is not the next one.
        """
        if total != self.total:
            raise BadChunk("total", f"{total} bytes, where {self.total} were announced")
        if offset != self.received:
            raise BadChunk("offset", f"{offset}, where {self.received} comes next")
        if not 0 < len(data) <= CHUNK_BYTES:
            raise BadChunk("data", f"{len(data)} bytes: a chunk has 1 to {CHUNK_BYTES}")
        if offset + len(data) > total:
            raise BadChunk("data", f"ends at {offset + len(data)}, the payload at {total}")
        if len(data) < self.least and offset + len(data) < total:
            raise BadChunk("data", f"{len(data)} bytes: a chunk that is not the last has at least {self.least}")
        self._take(data)
        self.received += len(data)
        return self.received == total

    @abstractmethod
    def _take(self, data: bytes) -> None: ...


class JoinedAssembly(Assembly):
    """For an end that decodes the payload: it grows in one buffer, and taking it copies nothing."""

    __slots__ = ("_buffer",)

    def __init__(self, total: int, *, least: int = MIN_CHUNK_BYTES) -> None:
        super().__init__(total, least=least)
        self._buffer = BytesIO()

    def _take(self, data: bytes) -> None:
        self._buffer.write(data)

    def payload(self) -> bytes:
        """What has come."""
        return self._buffer.getvalue()


class PartsAssembly(Assembly):
    """For an end that passes the payload on: the parts stay as they came."""

    __slots__ = ("_parts",)

    def __init__(self, total: int, *, least: int = MIN_CHUNK_BYTES) -> None:
        super().__init__(total, least=least)
        self._parts: list[bytes] = []

    def _take(self, data: bytes) -> None:
        self._parts.append(data)

    def payload(self) -> PayloadParts:
        """What has come."""
        return PayloadParts(self._parts)
