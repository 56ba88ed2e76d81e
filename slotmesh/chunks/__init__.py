"""Payloads that are too large to travel in one piece: their parts, cut and put together.

Purpose: the same for client, router and replica. Pure: no protobuf message, no I/O.
"""

from __future__ import annotations

from slotmesh.chunks.assembly import Assembly, BadChunk, JoinedAssembly, PartsAssembly
from slotmesh.chunks.lines import Lines
from slotmesh.chunks.payload import Announced, Payload, PayloadParts, cut, joined
from slotmesh.chunks.rota import ChunkRota
from slotmesh.chunks.sizes import CHUNK_BYTES, MAX_INLINE_BYTES, MAX_PAYLOAD_BYTES, MIN_CHUNK_BYTES

__all__ = [
    "CHUNK_BYTES",
    "MAX_INLINE_BYTES",
    "MAX_PAYLOAD_BYTES",
    "MIN_CHUNK_BYTES",
    "Announced",
    "Assembly",
    "BadChunk",
    "ChunkRota",
    "JoinedAssembly",
    "Lines",
    "PartsAssembly",
    "Payload",
    "PayloadParts",
    "cut",
    "joined",
]
