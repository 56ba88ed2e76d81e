"""Payloads that are too large for one message, cut into chunks, and the turns in which these leave. Pure.

Purpose: the same for client, router and replica. `arriving_payloads.py` joins the chunks again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Sequence
from typing import Final, Generic, NamedTuple, TypeVar

from slotmesh.streams.limits import CHUNK_BYTES, LARGE_CHUNK_BYTES, MIN_CHUNK_BYTES


class PayloadParts:
    """A payload in the parts in which it arrived. Its length is that of the payload, bytes.

    A router that only passes a payload on never joins its parts: copying 64 MiB would block the loop for tens of
    milliseconds.
    """

    __slots__ = ("_size", "parts")

    def __init__(self, parts: Sequence[bytes]) -> None:
        self.parts = parts
        self._size = sum(map(len, parts))

    def __len__(self) -> int:
        return self._size


class Announced:
    """Stands for a payload that is to follow. Its length is that of the payload, bytes."""

    __slots__ = ("_size",)

    def __init__(self, size: int) -> None:
        self._size = size

    def __len__(self) -> int:
        return self._size


Payload = bytes | PayloadParts


def joined(payload: Payload) -> bytes:
    """The payload in one piece. A copy: for small payloads."""
    return payload if isinstance(payload, bytes) else b"".join(payload.parts)


def cut(payload: Payload, most: Callable[[], int] = lambda: CHUNK_BYTES) -> Iterator[tuple[int, bytes]]:
    """The chunks of a payload: offset and bytes. Each is cut when it is requested, `most()` bytes at most."""
    before = 0
    for part in payload.parts if isinstance(payload, PayloadParts) else (payload,):
        at = 0
        while at < len(part):
            left = len(part) - at
            size = min(most(), left)
            if 0 < left - size < MIN_CHUNK_BYTES and before + len(part) < len(payload):
                size = left // 2  # what is left of the part must not be too small
            yield before + at, part[at : at + size]
            at += size
        before += len(part)


def fits_whole(payload: Payload | Announced, room: int) -> bool:
    """Whether a payload leaves in its frame, which has this number of bytes left, instead of in chunks behind it."""
    return isinstance(payload, bytes) and len(payload) <= max(room, CHUNK_BYTES)


OwnerT = TypeVar("OwnerT", bound=Hashable)


class OutgoingChunk(NamedTuple, Generic[OwnerT]):
    """The content of the next chunk."""

    owner: OwnerT
    """The owner of the payload, as passed to `add`."""
    offset: int
    total: int
    data: bytes
    is_last: bool


FrameT = TypeVar("FrameT")

SMALL_CHUNKS: Final = 16
"""Chunks of at most `CHUNK_BYTES` after a frame of small payloads has left between two chunks: others may follow it."""


class ChunkTurns(Generic[OwnerT]):
    """Outgoing payloads that take turns chunk by chunk, and with the other frames. False if nothing is left of them.

    Invariants: chunks of one payload leave in order; no payload waits for another one to be complete. At most one chunk
    leaves between two other frames, if there are others. Chunks are large only while nothing else leaves, so that calls
    beside a large payload wait for small chunks. A chunk is cut when it leaves, so that a payload is in memory once.
    Owner: the writer of the stream.
    """

    __slots__ = ("_is_due", "_small_left", "rota")

    def __init__(self) -> None:
        self._is_due = False
        """A chunk may leave before the next other frame."""
        self._small_left = 0
        """Small chunks until the next large one."""
        self.rota: deque[tuple[OwnerT, int, Iterator[tuple[int, bytes]]]] = deque()
        """Read directly, by code that checks for each frame whether something is left: as cheap as possible."""

    def __bool__(self) -> bool:
        return bool(self.rota)

    def add(self, owner: OwnerT, payload: Payload) -> None:
        """Adds a payload, which is not empty. What waits when the first one is added leaves before its chunks."""
        self._is_due = self._is_due and bool(self.rota)
        self.rota.append((owner, len(payload), cut(payload, self._most)))

    def next(self, chunk: Callable[[], FrameT | None], other: Callable[[], FrameT | None]) -> FrameT | None:
        """The next frame, of the function whose turn it is. `other`: returns a frame that is no chunk, or None."""
        if not self.rota:
            return other()
        if not self._is_due and (frame := other()) is not None:
            self._is_due = True
            return frame
        self._is_due = False
        frame = chunk()
        return other() if frame is None else frame

    def passed(self, nbytes: int) -> None:
        """A frame of calls or results leaves, with this number of bytes in their payloads: they may be in a hurry."""
        if nbytes <= CHUNK_BYTES:
            self._small_left = SMALL_CHUNKS

    def _most(self) -> int:
        if not self._small_left:
            return LARGE_CHUNK_BYTES
        self._small_left -= 1
        return CHUNK_BYTES

    def discard(self, owners: Iterable[OwnerT]) -> None:
        """Drops the payloads of these owners. Unknown owners are ignored."""
        gone = set(owners)
        left = [entry for entry in self.rota if entry[0] not in gone]
        self.rota.clear()
        self.rota.extend(left)

    def clear(self) -> None:
        """Drops all payloads."""
        self.rota.clear()

    def take(self) -> OutgoingChunk[OwnerT]:
        """The next chunk. Only if something is left."""
        owner, total, chunks = self.rota.popleft()
        offset, data = next(chunks)
        is_last = offset + len(data) >= total
        if not is_last:
            self.rota.append((owner, total, chunks))
        return OutgoingChunk(owner, offset, total, data, is_last)


EntryT = TypeVar("EntryT")


class Lines(Generic[EntryT]):
    """The items that wait behind a large payload of their own call. False if there are none.

    Purpose: a payload in chunks takes time. Other calls pass it; later items of its own call must wait for it.
    Invariants: items of one call leave in their order; one payload of a call at a time is in chunks. Calls without a
    large payload cost nothing here.
    Owner: the writer of the stream.
    """

    __slots__ = ("by_call",)

    def __init__(self) -> None:
        self.by_call: dict[int, deque[EntryT]] = {}
        """Read directly, by code that checks for each frame whether there are any: as cheap as possible."""

    def __bool__(self) -> bool:
        return bool(self.by_call)

    def __contains__(self, call_id: int) -> bool:
        return call_id in self.by_call

    def begin(self, call_id: int) -> None:
        """A large payload of this call starts to leave; no other one is leaving."""
        self.by_call[call_id] = deque()

    def wait(self, call_id: int, entry: EntryT) -> bool:
        """Adds the next item of the call, if it must wait. Returns whether it does."""
        line = self.by_call.get(call_id)
        if line is None:
            return False
        line.append(entry)
        return True

    def concern(self, call_ids: Iterable[int]) -> bool:
        """Whether items of one of these calls may have to wait."""
        return not self.by_call.keys().isdisjoint(call_ids)

    def among(self, call_ids: Container[int]) -> list[int]:
        """Those of these calls that have a large payload on its way, in ascending order."""
        return sorted(call_id for call_id in self.by_call if call_id in call_ids)

    def end(self, call_id: int) -> deque[EntryT]:
        """The large payload has left: returns the items that waited, in order, one of which may start a new line."""
        return self.by_call.pop(call_id)

    def clear(self) -> None:
        """Drops everything."""
        self.by_call.clear()
