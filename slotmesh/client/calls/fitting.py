"""How many calls fit into a frame and into the window. Pure."""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate

from slotmesh.wire.limits import CHUNK_BYTES


def inline_sizes(sizes: list[int]) -> list[int]:
    """What payloads of these sizes add to a frame: nothing where they follow it in chunks."""
    return [0 if size > CHUNK_BYTES else size for size in sizes]


def fitting_calls(sizes: list[int], nbytes: int, room: int, *, cuts: bool) -> int:
    """How many of these calls fit into a window of `nbytes` bytes, and into a frame that has `room` bytes left."""
    fitting = bisect_right(list(accumulate(sizes)), nbytes)
    return min(fitting, bisect_right(list(accumulate(inline_sizes(sizes) if cuts else sizes)), room))
