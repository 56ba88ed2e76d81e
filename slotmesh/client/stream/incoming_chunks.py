"""Large results on their way from the router: chunks first, then the batch that says whose they are.

Invariants: what comes for a call that has its outcome, or that nobody waits for any more, is passed over. Nothing is
kept of a call that has its outcome. Memory is taken as bytes arrive.
Owner: the `RouterLink` of one connection; what had come on a broken one comes again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from slotmesh.client.stream.pending_calls import PendingCalls
from slotmesh.errors import Executed, Failure, Reason
from slotmesh.v1 import call_pb2
from slotmesh.wire.chunks import BadChunk, JoinedAssembly

PAYLOAD_LOST: Final = Failure(
    reason=Reason.INTERNAL,
    message="the result was to come in chunks, and they are not complete",
    executed=Executed.YES,
)


class IncomingChunks:
    """Payloads under way, by call."""

    __slots__ = ("_assemblies", "_pending")

    def __init__(self, pending: PendingCalls) -> None:
        self._assemblies: dict[int, JoinedAssembly] = {}
        self._pending = pending

    def add(self, chunk: call_pb2.Chunk) -> None:
        """The next chunk of a result. One that does not fit loses the payload: the batch will not find it."""
        call_id = chunk.call_id
        if not self._is_wanted(call_id):
            self._assemblies.pop(call_id, None)
            return
        assembly = self._assemblies.get(call_id)
        if assembly is None:
            assembly = self._assemblies[call_id] = JoinedAssembly(chunk.total, least=1)
        try:
            assembly.add(chunk.offset, chunk.total, chunk.data)
        except BadChunk:
            del self._assemblies[call_id]

    def complete(self, call_ids: Sequence[int], payloads: list[bytes], sizes: list[int]) -> list[int]:
        """Puts the payloads that came in chunks at their places. Returns calls that wait for one that is not there."""
        lost: list[int] = []
        for at, (call_id, size) in enumerate(zip(call_ids, sizes, strict=True)):
            if not size:
                continue
            assembly = self._assemblies.pop(call_id, None)
            if assembly is not None and assembly.received == assembly.total == size:
                payloads[at] = assembly.payload()
            elif self._is_wanted(call_id):
                lost.append(call_id)
        return lost

    def forget(self, call_ids: Iterable[int]) -> None:
        """These calls have another outcome."""
        if self._assemblies:
            for call_id in call_ids:
                self._assemblies.pop(call_id, None)

    def _is_wanted(self, call_id: int) -> bool:
        found = self._pending.find(call_id)
        return found is not None and found[0].is_wanted(found[1])
