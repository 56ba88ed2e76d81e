"""Payloads that are too large to travel in one piece: their parts, cut and put together.

Purpose: the same for client, router and replica. Pure: no protobuf message, no I/O.
"""

from __future__ import annotations

from slotmesh.wire.chunks.assembly import Assembly, BadChunk, JoinedAssembly, PartsAssembly
from slotmesh.wire.chunks.chunk_turns import ChunkTurns
from slotmesh.wire.chunks.lines import Lines
from slotmesh.wire.chunks.payload import Announced, Payload, PayloadParts, cut, joined

__all__ = [
    "Announced",
    "Assembly",
    "BadChunk",
    "ChunkTurns",
    "JoinedAssembly",
    "Lines",
    "PartsAssembly",
    "Payload",
    "PayloadParts",
    "cut",
    "joined",
]
