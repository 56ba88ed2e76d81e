"""Payloads that are too large to travel in one piece: their parts, cut and put together.

Purpose: the same for client, router and replica. Pure: no protobuf message, no I/O.
"""

from __future__ import annotations

from slotmesh.wire.chunks.assembly import Assembly, BadChunk, JoinedAssembly, PartsAssembly
from slotmesh.wire.chunks.lines import Lines
from slotmesh.wire.chunks.payload import Announced, Payload, PayloadParts, cut, joined
from slotmesh.wire.chunks.rota import ChunkRota

__all__ = [
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
