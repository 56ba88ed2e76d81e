"""Where clients go that cannot stay at this router: the others, at ports of the kind that the client came by.

Who has a bearer token and no certificate is served at a port of its own, and at those of other routers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from router_service.core.routing.table import RoutingTable


class Alternates:
    """Of one router."""

    def __init__(self, table: Callable[[], RoutingTable]) -> None:
        """`table` gives the one in force."""
        self._table = table
        self.address = ""
        """Where clients reach this router, once it listens: what is left out."""
        self.token_address = ""
        """The same for those without a certificate; empty: there is no such port."""

    def came_by_token_port(self, context: Any) -> bool:
        """Whether the client of this rpc did."""
        return bool(self.token_address) and not context.auth_context().get("x509_pem_cert")

    def others(self, *, by_token: bool) -> list[str]:
        """Addresses of the other routers."""
        table = self._table()
        known, own = (
            (table.router_token_addresses, self.token_address) if by_token else (table.router_addresses, self.address)
        )
        return [address for address in known if address != own]
