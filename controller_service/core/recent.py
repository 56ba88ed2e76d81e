"""What a member has reported in the last seconds: the newest, and an earlier one, so that rates are differences.

Invariants: all kept are of one start of the member, or counting would begin anew among them; a few are kept, however
often it reports.
Owner: the link to the member.
"""

from __future__ import annotations

from collections import deque
from typing import Final, Generic, TypeVar

SPAN_S: Final = 2.0
"""The earlier report is so old, or older where there is none of that age; younger only where there is no such one."""
SPACING_S: Final = 0.5
"""Reports that follow more quickly take the place of the one before them."""

ReportT = TypeVar("ReportT")


class RecentReports(Generic[ReportT]):
    """Reports, oldest first."""

    def __init__(self) -> None:
        self._kept: deque[tuple[float, ReportT]] = deque()
        """When each came, seconds (monotonic)."""

    def add(self, report: ReportT, now: float) -> None:
        """The newest report."""
        kept = self._kept
        if len(kept) > 1 and kept[-1][0] - kept[-2][0] < SPACING_S:
            kept.pop()
        kept.append((now, report))
        while len(kept) > 1 and now - kept[1][0] >= SPAN_S:
            kept.popleft()

    @property
    def newest(self) -> ReportT | None:
        """None before the first."""
        return self._kept[-1][1] if self._kept else None

    @property
    def newest_at(self) -> float | None:
        """When it came."""
        return self._kept[-1][0] if self._kept else None

    @property
    def earlier(self) -> ReportT | None:
        """None where there is only one."""
        return self._kept[0][1] if len(self._kept) > 1 else None
