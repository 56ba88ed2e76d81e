"""What is said of calls that routers have dropped: at once, then now and then, and the sum at the end. Pure."""

from __future__ import annotations

from math import inf
from typing import Final

SAY_EVERY_S: Final = 5.0
"""How often it is said of one router, at most."""


class TapDrops:
    """Calls that were dropped, by router."""

    def __init__(self) -> None:
        self.total = 0
        self._untold: dict[str, int] = {}
        self._told_at: dict[str, float] = {}

    def add(self, address: str, dropped: int, now: float) -> str:
        """A router has dropped so many more. Returns what is to be said of it; empty where nothing is, for now."""
        self.total += dropped
        untold = self._untold[address] = self._untold.get(address, 0) + dropped
        if not untold or now - self._told_at.get(address, -inf) < SAY_EVERY_S:
            return ""
        self._untold[address], self._told_at[address] = 0, now
        return f"{address} dropped {untold} calls; show fewer with --rate, or more with --max-per-second"
