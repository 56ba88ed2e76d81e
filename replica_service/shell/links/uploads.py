"""Payloads of calls that come in chunks from one router.

Purpose: puts chunks together, and posts when a payload is complete, or never will be.
Invariants: only calls that wait for their payload have one here: the engine names those that it answers. A chunk of any
other call is dropped; one that breaks the rules fails its call, and no other.
Owner: the router's stream.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from replica_service.core.calls import ReplicaRun, RouterPeer
from replica_service.core.events import PayloadCame, PayloadFailed
from slotmesh.errors import Failure, Reason
from slotmesh.v1 import call_pb2
from slotmesh.wire.chunks import BadChunk, JoinedAssembly

if TYPE_CHECKING:
    from replica_service.shell.engine import Engine


class RouterUploads:
    """What one router has announced and not brought."""

    def __init__(self, engine: Engine, link: RouterPeer) -> None:
        self._engine = engine
        self._link = link
        self._under_way: dict[int, tuple[ReplicaRun, JoinedAssembly]] = {}
        """By run id."""
        link.uploads = self

    def __bool__(self) -> bool:
        """Whether any is under way."""
        return bool(self._under_way)

    def announce(self, sizes: Mapping[int, int]) -> None:
        """The chunks of these calls, by run id, come next; of so many bytes. Those that were answered do not count."""
        for run_id, size in sizes.items():
            run = self._link.waiting.get(run_id)
            if run is not None and run.awaits:
                self._under_way[run_id] = (run, JoinedAssembly(size))

    def add(self, chunk: call_pb2.Chunk) -> None:
        """The next chunk of some payload."""
        found = self._under_way.get(chunk.call_id)
        if found is None:
            return
        run, assembly = found
        try:
            is_complete = assembly.add(chunk.offset, chunk.total, chunk.data)
        except BadChunk as mistake:
            self._spoil(run, f"chunk.{mistake}", f"chunk.{mistake.field}")
            return
        if is_complete:
            del self._under_way[chunk.call_id]
            self._engine.post(PayloadCame(run, assembly.payload()))

    def forget(self, run_id: int) -> None:
        """The call of this run id has its answer, or never came in chunks."""
        self._under_way.pop(run_id, None)

    def end(self) -> None:
        """The router sends nothing more."""
        for run, assembly in list(self._under_way.values()):
            got = f"{assembly.received} of {assembly.total} bytes"
            self._spoil(run, f"chunk: the stream was half-closed after {got}", "chunk")

    def _spoil(self, run: ReplicaRun, message: str, field: str) -> None:
        failure = Failure(reason=Reason.BAD_REQUEST, message=message, metadata={"field": field})
        self._engine.post(PayloadFailed(run, failure))
