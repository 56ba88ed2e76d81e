"""What a replica can take, as it says itself.

Owner: made at the edge from each frame that tells it; the replica's state keeps the newest.
"""

from __future__ import annotations

from typing import NamedTuple

DEFAULT_KEYED_WINDOW = 8192
"""Keyed calls unanswered at a replica that has not said otherwise."""


class ReportedCapacity(NamedTuple):
    """A replica's own report. Counts calls."""

    max_ongoing: int
    prefetch: int = 0
    others: int = 0
    """Room taken by anything but this router's unkeyed calls."""
    keyed_window: int = DEFAULT_KEYED_WINDOW
    draining: bool = False
