"""The newest routing table, for whoever has to hear of it.

Invariants: the revision never goes back; each table becomes a message once, however many routers there are, and who
owns what is written out again only where it has changed.
Owner: the reconcile loop posts, router streams read.
"""

from __future__ import annotations

from collections.abc import Callable

from controller_service.convert import departures_to_wire, ownership_to_bytes, table_to_wire
from controller_service.core.partitions import Ownership
from controller_service.core.routing import RoutingTable
from controller_service.shell.departures import Departures
from slotmesh.runtime.clock import Clock
from slotmesh.v1 import membership_service_pb2 as wire


class TableBoard:
    """Holds the newest table and wakes those who wait for a newer one."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._departures = Departures()
        self.table: RoutingTable | None = None
        self.message: wire.AttachRouterResponse | None = None
        """`table`, as it is sent."""
        self._listeners: dict[Callable[[], None], None] = {}
        self._written: dict[str, tuple[Ownership, bytes]] = {}
        """By endpoint: who owns what in the newest table, and the same as it is sent."""

    def post(self, table: RoutingTable) -> None:
        """Announces a table. Its revision must be newer."""
        if self.table is not None and table.revision <= self.table.revision:
            raise ValueError(f"revision {table.revision} after {self.table.revision}")
        self.table = table
        self._departures.announced(table.routes, self._clock.now())
        self._written = {route.name: self._write(it) for route in table.routes.endpoints if (it := route.ownership)}
        written = self._written
        self.message = wire.AttachRouterResponse(table=table_to_wire(table, lambda it: written[it.endpoint][1]))
        for listener in self._listeners:
            listener()

    def _write(self, ownership: Ownership) -> tuple[Ownership, bytes]:
        known = self._written.get(ownership.endpoint)
        return known if known is not None and known[0] is ownership else (ownership, ownership_to_bytes(ownership))

    def departures(self) -> wire.AttachRouterResponse | None:
        """Who left the table of late, as a router that attaches now hears it; None where nobody did."""
        ages = self._departures.ages(self._clock.now())
        return wire.AttachRouterResponse(departures=departures_to_wire(ages)) if ages else None

    def listen(self, listener: Callable[[], None]) -> None:
        self._listeners[listener] = None

    def ignore(self, listener: Callable[[], None]) -> None:
        self._listeners.pop(listener, None)
