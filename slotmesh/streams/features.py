"""Optional behaviours of streams, by the names that an end states when a stream opens.

An end states what it supports or requests, and the other end adapts to it; unknown names are ignored. Only clients of
routers have features today: the protos specify what each name means, at `OpenStream`.
"""

from __future__ import annotations

from typing import Final

CHUNKS: Final = "chunks"
"""Reads large results in chunks of up to 1 MiB."""

TAKE_ITEMS: Final = "take_items"
"""Acknowledges values of handlers that yield. For others, values count as taken when written."""

BLOCKS: Final = "blocks"
"""Reads the payloads of a batch of results in one block."""

EXECUTORS: Final = "executors"
"""Requests the name of the replica that has executed each of its calls."""

OF_CLIENTS: Final = (CHUNKS, TAKE_ITEMS, BLOCKS)
"""What this package's client always states."""
