"""Payloads that arrive in chunks (`chunks.py`), until they are complete. Pure: no protobuf message, no I/O.

Purpose: the same for client, router and replica. Payloads of results arrive before the frame that has their outcome
(`ArrivingPayloads`); those of calls are announced first (`AnnouncedPayloads`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from io import BytesIO
from typing import Any, Generic, TypeVar

from slotmesh.errors import Failure, Reason
from slotmesh.streams.chunks import Payload, PayloadParts, joined
from slotmesh.streams.limits import CHUNK_BYTES, LARGE_CHUNK_BYTES, MAX_PAYLOAD_BYTES, MIN_CHUNK_BYTES


class BadChunk(ValueError):
    """A chunk that does not continue its payload: the field, and what was expected."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field

    @property
    def failure(self) -> Failure:
        """Of the call that the chunk belongs to."""
        field = f"chunk.{self.field}"
        return Failure(reason=Reason.BAD_REQUEST, message=f"chunk.{self}", metadata={"field": field})


PayloadT = TypeVar("PayloadT", bound=Payload, covariant=True)


class Assembly(ABC, Generic[PayloadT]):
    """A payload of `total` bytes that arrives in chunks.

    Invariants: chunks of a payload arrive in order, without gap or overlap, and not too small; anything else is an
    error of the sender, and raises. Memory is allocated as bytes arrive, not as they are announced.
    Owner: the reader of the stream.
    """

    __slots__ = ("least", "received", "total")

    def __init__(self, total: int, *, least: int = MIN_CHUNK_BYTES) -> None:
        """`least`: bytes of each chunk but the last; 0 for a trusted sender."""
        self.total = total
        self.least = least
        self.received = 0

    def add(self, offset: int, total: int, data: bytes) -> bool:
        """Adds the next chunk. Returns whether the payload is complete.

        Raises:
            BadChunk: it is not the next one.
        """
        if total != self.total:
            raise BadChunk("total", f"{total} bytes, where {self.total} were announced")
        if offset != self.received:
            raise BadChunk("offset", f"{offset}, where {self.received} comes next")
        if not 0 < len(data) <= LARGE_CHUNK_BYTES:
            raise BadChunk("data", f"{len(data)} bytes: a chunk has 1 to {LARGE_CHUNK_BYTES}")
        if offset + len(data) > total:
            raise BadChunk("data", f"ends at {offset + len(data)}, the payload at {total}")
        if len(data) < self.least and offset + len(data) < total:
            raise BadChunk("data", f"{len(data)} bytes: a chunk that is not the last has at least {self.least}")
        self._take(data)
        self.received += len(data)
        return self.received == total

    @abstractmethod
    def _take(self, data: bytes) -> None: ...

    @abstractmethod
    def payload(self) -> PayloadT:
        """The bytes that have arrived."""


class JoinedAssembly(Assembly[bytes]):
    """For an end that decodes the payload: it grows in one buffer, which `payload` returns without a copy.

    One that arrives in a single chunk is that chunk.
    """

    __slots__ = ("_buffer", "_single")

    def __init__(self, total: int, *, least: int = MIN_CHUNK_BYTES) -> None:
        super().__init__(total, least=least)
        self._buffer = BytesIO()
        self._single = b""

    def _take(self, data: bytes) -> None:
        if len(data) == self.total:
            self._single = data
        else:
            self._buffer.write(data)

    def payload(self) -> bytes:
        return self._single or self._buffer.getvalue()


class PartsAssembly(Assembly[Payload]):
    """For an end that passes the payload on: the parts stay as they arrived, but for those of a small payload."""

    __slots__ = ("_parts",)

    def __init__(self, total: int, *, least: int = MIN_CHUNK_BYTES) -> None:
        super().__init__(total, least=least)
        self._parts: list[bytes] = []

    def _take(self, data: bytes) -> None:
        self._parts.append(data)

    def payload(self) -> Payload:
        parts = PayloadParts(self._parts)
        return parts if self.total > CHUNK_BYTES else joined(parts)


class ArrivingPayloads(Generic[PayloadT]):
    """Payloads that arrive in chunks on one stream, by the id of their call.

    Invariants: a payload is here from its announcement, or its first chunk, until it was taken, or its call has ended.
    Owner: the reader of the stream.
    """

    def __init__(self, assembly: Callable[[int], Assembly[PayloadT]]) -> None:
        """`assembly` begins one of this number of bytes."""
        self._assembly = assembly
        self.under_way: dict[int, Assembly[PayloadT]] = {}
        """Read directly, by code that checks for each frame whether there are any."""

    def __bool__(self) -> bool:
        """Whether any payload is incomplete."""
        return bool(self.under_way)

    def announce(self, call_id: int, total: int) -> None:
        """The chunks of this payload come next, `total` bytes in all."""
        self.under_way[call_id] = self._assembly(total)

    def add(self, call_id: int, offset: int, total: int, data: bytes) -> bool:
        """Adds the next chunk; the first one of a payload announces it. Returns whether the payload is complete.

        Raises:
            BadChunk: it is not the next one.
        """
        if call_id not in self.under_way:
            if not 0 < total <= MAX_PAYLOAD_BYTES:
                raise BadChunk("total", f"{total} bytes; at most {MAX_PAYLOAD_BYTES} are allowed")
            self.announce(call_id, total)
        return self.under_way[call_id].add(offset, total, data)

    def put(self, call_ids: Sequence[int], sizes: Sequence[int], payloads: list[Any]) -> list[int]:
        """Puts complete payloads at their places. Returns the calls whose payloads are not complete.

        `sizes`: bytes of those that arrive in chunks; 0 of others.
        """
        lost: list[int] = []
        for at, (call_id, size) in enumerate(zip(call_ids, sizes, strict=True)):
            if size:
                assembly = self.under_way.pop(call_id, None)
                if assembly is not None and assembly.received == assembly.total == size:
                    payloads[at] = assembly.payload()
                else:
                    lost.append(call_id)
        return lost

    def drop(self, call_ids: Iterable[int]) -> None:
        """These calls have their outcome, or are not wanted: what has arrived is of no use."""
        if self.under_way:
            for call_id in call_ids:
                self.under_way.pop(call_id, None)


class AnnouncedPayloads(ArrivingPayloads[PayloadT]):
    """Payloads of calls, which their sender has announced.

    Invariants: a chunk of a call that is not awaited (it was rejected, has ended, or was never announced) is dropped;
    one that breaks the rules fails its call, and no other.
    """

    def __init__(
        self,
        assembly: Callable[[int], Assembly[PayloadT]],
        on_payload: Callable[[int, PayloadT], object],
        on_failure: Callable[[int, Failure], object],
        on_chunk: Callable[[int, int], object] = lambda _call_id, _nbytes: None,
    ) -> None:
        """`on_payload` takes the payload of a call when it is complete, `on_failure` the reason why it never will be.

        `on_chunk` takes the size of each chunk, before.
        """
        super().__init__(assembly)
        self._on_payload = on_payload
        self._on_failure = on_failure
        self._on_chunk = on_chunk

    def accept(self, call_id: int, offset: int, total: int, data: bytes) -> None:
        """Adds a chunk of some payload."""
        if call_id not in self.under_way:
            return
        try:
            is_complete = self.add(call_id, offset, total, data)
        except BadChunk as error:
            self._on_failure(call_id, error.failure)
            return
        self._on_chunk(call_id, len(data))
        if is_complete:
            self._on_payload(call_id, self.under_way.pop(call_id).payload())

    def end(self) -> None:
        """The sender has half-closed: what is not complete never will be."""
        for call_id in list(self.under_way):
            if (assembly := self.under_way.get(call_id)) is None:
                continue  # it ended with one before it
            message = f"chunk: the stream was half-closed after {assembly.received} of {assembly.total} bytes"
            failure = Failure(reason=Reason.BAD_REQUEST, message=message, metadata={"field": "chunk"})
            self._on_failure(call_id, failure)
