"""How large is large."""

from __future__ import annotations

from typing import Final

CHUNK_BYTES: Final = 256 * 1024
"""What one chunk carries at most. Payloads up to this size travel inline: they are no longer than a chunk."""

MIN_CHUNK_BYTES: Final = 16 * 1024
"""What one chunk carries at least, unless it is the last of its payload: each is a frame, and costs as much."""

MAX_INLINE_BYTES: Final = 4 * 1024 * 1024
"""Largest payload that is accepted inline, from who does not cut."""

MAX_PAYLOAD_BYTES: Final = 64 * 1024 * 1024
"""Largest payload, unless configured otherwise."""
