"""What the router's shell counts of its streams: plain integers that a scrape reads.

Invariants: each number is written by the half of a stream that it is about.
Owner: the dispatcher holds one for all streams.
"""

from __future__ import annotations

from collections import Counter

from slotmesh.telemetry.names import DIRECTION_IN, DIRECTION_OUT


class FrameCounts:
    """Totals since the start of the process, and what is open now."""

    def __init__(self) -> None:
        self.streams = 0
        """Client streams open now."""
        self.sessions = 0
        """Sessions whose newest stream is one of them."""
        self.client_frames: Counter[tuple[str, ...]] = Counter({(DIRECTION_IN,): 0, (DIRECTION_OUT,): 0})
        """Frames with calls and with results of clients, by direction."""
        self.replica_frames: Counter[tuple[str, ...]] = Counter()
        """Frames with calls to replicas and with their results, by backend and direction."""
