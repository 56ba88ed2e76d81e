"""Large payloads on their way to the router, after their calls were announced.

Invariants: a call that has its outcome, or that nobody waits for any more, sends no further chunk.
Owner: the `RouterLink` of one connection. A broken one leaves nothing behind: the next announces its calls again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slotmesh.v1 import call_pb2
from slotmesh.wire.chunks import ChunkTurns

if TYPE_CHECKING:
    from slotmesh.client.calls.sent_parts import SentPart


class OutgoingChunks:
    """What is left of announced payloads. True while something may be."""

    __slots__ = ("_rota", "streaming_only")

    def __init__(self) -> None:
        self._rota: ChunkTurns[tuple[SentPart, int]] = ChunkTurns()
        """Owners are calls: their part, and their place there."""
        self.streaming_only = False
        """All other calls go on over another stream."""

    def __bool__(self) -> bool:
        return bool(self._rota)

    def add(self, part: SentPart, call_id: int) -> None:
        """A call of this part was announced."""
        place = call_id - part.first
        self._rota.add((part, place), part.payloads[place])

    def take(self) -> call_pb2.Chunk | None:
        """The next chunk; None where nothing is left."""
        while self._rota:
            chunk = self._rota.take()
            part, place = chunk.owner
            if part.is_wanted(place) and (part.spec.streaming or not self.streaming_only):
                return call_pb2.Chunk(
                    call_id=part.first + place, offset=chunk.offset, total=chunk.total, data=chunk.data
                )
            self._rota.discard([chunk.owner])
        return None
