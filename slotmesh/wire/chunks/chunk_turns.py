"""Payloads on their way out, which take turns chunk by chunk.

Invariants: chunks of one payload leave in order; of several payloads none waits for another one to be complete. A chunk
is cut when it leaves, so that a payload is in memory once.
Owner: the writer of the stream.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Iterator
from typing import Generic, NamedTuple, TypeVar

from slotmesh.wire.chunks.payload import Payload, cut

OwnerT = TypeVar("OwnerT", bound=Hashable)


class OutgoingChunk(NamedTuple, Generic[OwnerT]):
    """What the next chunk carries."""

    owner: OwnerT
    """What the payload belongs to, as the caller has named it."""
    offset: int
    total: int
    data: bytes
    is_last: bool


class ChunkTurns(Generic[OwnerT]):
    """What is left of some payloads. False while nothing is."""

    __slots__ = ("rota",)

    def __init__(self) -> None:
        self.rota: deque[tuple[OwnerT, int, Iterator[tuple[int, bytes]]]] = deque()
        """To be read, by those who ask for each frame whether something is left: as cheap as can be."""

    def __bool__(self) -> bool:
        return bool(self.rota)

    def add(self, owner: OwnerT, payload: Payload) -> None:
        """A payload that is to leave; it is not empty."""
        self.rota.append((owner, len(payload), cut(payload)))

    def discard(self, owners: Iterable[OwnerT]) -> None:
        """What is left of these ones' payloads is not wanted any more. Unknown owners are ignored."""
        gone = set(owners)
        left = [entry for entry in self.rota if entry[0] not in gone]
        self.rota.clear()
        self.rota.extend(left)

    def clear(self) -> None:
        """Nothing is wanted any more."""
        self.rota.clear()

    def take(self) -> OutgoingChunk[OwnerT]:
        """The next chunk. Only while something is left."""
        owner, total, chunks = self.rota.popleft()
        offset, data = next(chunks)
        is_last = offset + len(data) >= total
        if not is_last:
            self.rota.append((owner, total, chunks))
        return OutgoingChunk(owner, offset, total, data, is_last)
