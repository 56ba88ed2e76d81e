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
    """What is left of announced payloads."""

    __slots__ = ("_turns", "left", "streaming_only")

    def __init__(self) -> None:
        self._turns: ChunkTurns[tuple[SentPart, int]] = ChunkTurns()
        """Owners are calls: their part, and their place there."""
        self.left = self._turns.rota
        """To be read: empty where nothing is left. Asked for each frame."""
        self.streaming_only = False
        """All other calls go on over another stream."""

    def add(self, part: SentPart, call_id: int) -> None:
        """A call of this part was announced."""
        place = call_id - part.first
        self._turns.add((part, place), part.payloads[place])

    def take(self) -> call_pb2.Chunk | None:
        """The next chunk; None where nothing is left."""
        while self.left:
            chunk = self._turns.take()
            part, place = chunk.owner
            if part.is_wanted(place) and (part.spec.streaming or not self.streaming_only):
                return call_pb2.Chunk(
                    call_id=part.first + place, offset=chunk.offset, total=chunk.total, data=chunk.data
                )
            self._turns.discard([chunk.owner])
        return None
