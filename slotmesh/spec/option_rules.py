"""Bounds of keys and metadata of calls, for every server and client that accepts them. Pure.

Invariant: a problem is worded to follow the name by which the caller gave the value: an option, a header, a parameter.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from slotmesh.spec.rules import show

MAX_KEY_BYTES: Final = 1024
"""Longest ordering key, shard key, affinity key or model id."""
MAX_METADATA_ENTRIES: Final = 64
MAX_METADATA_BYTES: Final = 8 * 1024
_RESERVED_PREFIXES: Final = ("slotmesh-", "grpc-")


def key_problem(key: str) -> str | None:
    """Why a key or a model id is invalid."""
    size = len(key.encode())
    return f"at most {MAX_KEY_BYTES} bytes, got {size}" if size > MAX_KEY_BYTES else None


def metadata_problem(metadata: Mapping[str, str]) -> str | None:
    """Why the metadata of a call is invalid."""
    if len(metadata) > MAX_METADATA_ENTRIES:
        return f"at most {MAX_METADATA_ENTRIES} entries, got {len(metadata)}"
    size = sum(len(key) + len(value) for key, value in metadata.items())
    if size > MAX_METADATA_BYTES:
        return f"at most {MAX_METADATA_BYTES} bytes in all, got {size}"
    for key in metadata:
        if problem := metadata_key_problem(key):
            return problem
    return None


def metadata_key_problem(key: str) -> str | None:
    """Why a key of metadata is invalid."""
    if key.startswith(_RESERVED_PREFIXES) or key == "authorization" or key != key.lower() or not key:
        return f"key {show(key)!r} is reserved, empty or not lower case"
    return None
