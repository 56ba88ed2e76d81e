"""The newest routing table, for the streams of routers.

Invariants: the revision never goes back; each table becomes a message once, however many routers there are, and owners
are written out again only where they have changed.
Owner: the reconcile loop posts, router streams read.
"""

from __future__ import annotations

from collections.abc import Callable

from controller_service.convert.tables import ownership_to_bytes, table_to_wire
from controller_service.core.partitions import PartitionOwnership
from controller_service.core.routing import AnnouncedTable
from slotmesh.v1 import membership_service_pb2 as wire


class TableBoard:
    """Holds the newest table and wakes the streams that wait for a newer one."""

    def __init__(self) -> None:
        self.table: AnnouncedTable | None = None
        self.message: wire.AttachRouterResponse | None = None
        """`table`, as it is sent."""
        self._listeners: dict[Callable[[], None], None] = {}
        self._written: dict[str, tuple[PartitionOwnership, bytes]] = {}
        """By endpoint: the owners in the newest table, and the same as a message."""

    def post(self, table: AnnouncedTable) -> None:
        """Announces a table. Its revision must be newer."""
        if self.table is not None and table.revision <= self.table.revision:
            raise ValueError(f"revision {table.revision} after {self.table.revision}")
        self.table = table
        self._written = {route.name: self._write(it) for route in table.routes.endpoints if (it := route.ownership)}
        written = self._written
        self.message = wire.AttachRouterResponse(table=table_to_wire(table, lambda it: written[it.endpoint][1]))
        for listener in self._listeners:
            listener()

    def _write(self, ownership: PartitionOwnership) -> tuple[PartitionOwnership, bytes]:
        known = self._written.get(ownership.endpoint)
        return known if known is not None and known[0] is ownership else (ownership, ownership_to_bytes(ownership))

    def listen(self, listener: Callable[[], None]) -> None:
        self._listeners[listener] = None

    def ignore(self, listener: Callable[[], None]) -> None:
        self._listeners.pop(listener, None)
