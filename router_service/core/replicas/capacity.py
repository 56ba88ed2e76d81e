"""The capacity that a replica reports.

Owner: made at the edge from each frame that carries one; the replica's state keeps the newest.
"""

from __future__ import annotations

from typing import NamedTuple

DEFAULT_KEYED_WINDOW = 8192
"""The bound of unanswered keyed calls at a replica that has not reported its own."""


class ReportedCapacity(NamedTuple):
    """A replica's own report. Counts calls."""

    max_ongoing: int
    prefetch: int = 0
    others: int = 0
    """Room taken by anything but this router's unkeyed calls."""
    keyed_window: int = DEFAULT_KEYED_WINDOW
    draining: bool = False
