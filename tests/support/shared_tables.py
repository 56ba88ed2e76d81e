"""Routing tables that are made in tests, with the objects of the table before them, as those from the wire have."""

from __future__ import annotations

from dataclasses import replace

from router_service.core.routing_table import RoutingTable


def sharing(table: RoutingTable, before: RoutingTable) -> RoutingTable:
    """The same table, with the objects of the one before it wherever these say the same."""
    return replace(
        table,
        endpoints={name: each.sharing(before.endpoints.get(name)) for name, each in table.endpoints.items()},
        backends={
            name: known if (known := before.backends.get(name)) == each else each
            for name, each in table.backends.items()
        },
    )
