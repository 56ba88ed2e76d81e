"""The newest routing table, for whoever has to hear of it.

Invariants: the revision never goes back; each table becomes a message once, however many routers there are.
Owner: the reconcile loop posts, router streams read.
"""

from __future__ import annotations

from collections.abc import Callable

from controller_service.convert import table_to_wire
from controller_service.core.routing import RoutingTable
from slotmesh.v1 import membership_service_pb2 as wire


class TableBoard:
    """Holds the newest table and wakes those who wait for a newer one."""

    def __init__(self) -> None:
        self.table: RoutingTable | None = None
        self.message: wire.AttachRouterResponse | None = None
        """`table`, as it is sent."""
        self._listeners: set[Callable[[], None]] = set()

    def post(self, table: RoutingTable) -> None:
        """Announces a table. Its revision must be newer."""
        if self.table is not None and table.revision <= self.table.revision:
            raise ValueError(f"revision {table.revision} after {self.table.revision}")
        self.table = table
        self.message = wire.AttachRouterResponse(table=table_to_wire(table))
        for listener in self._listeners:
            listener()

    def listen(self, listener: Callable[[], None]) -> None:
        self._listeners.add(listener)

    def ignore(self, listener: Callable[[], None]) -> None:
        self._listeners.discard(listener)
