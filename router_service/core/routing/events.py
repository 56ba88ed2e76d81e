"""What happens to the routing table.

Owner: the table watch makes them, the scheduler reads them.
"""

from __future__ import annotations

from dataclasses import dataclass

from router_service.core.events import RouterEvent
from router_service.core.routing.table import RoutingTable


@dataclass(slots=True, eq=False)
class TableReceived(RouterEvent):
    """A table came from the controller. An older one changes nothing: `RouterScheduler.table` is the one in force."""

    table: RoutingTable
