"""What metrics say of tenants: those with most calls by name, all others as one.

Invariants: of each endpoint at most as many names as the router tells apart; tenants of one name of two callers add up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from router_service.core.tenants.account import TenantFigures
from router_service.core.tenants.book import TenantBook
from slotmesh.telemetry.names import OTHER_TENANTS


class TenantMetrics:
    """By endpoint and tenant."""

    def __init__(self, book: TenantBook) -> None:
        self._book = book

    def totals(self, read: Callable[[TenantFigures], int]) -> Counter[tuple[str, ...]]:
        """One of the figures."""
        found: Counter[tuple[str, ...]] = Counter()
        for endpoint, figures in self._book.others.copy().items():
            found[endpoint, OTHER_TENANTS] += read(figures)
        for account in self._book.named():
            found[account.endpoint, account.name] += read(account.figures)
        return found

    def unanswered(self) -> Counter[tuple[str, ...]]:
        """Calls without an outcome, of those that are named."""
        found: Counter[tuple[str, ...]] = Counter()
        for account in self._book.named():
            found[account.endpoint, account.name] += account.unanswered
        return found
