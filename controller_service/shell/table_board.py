"""The newest routing table, for the streams of routers.

Invariants: the revision never goes back; each table, and each delta between two of them, becomes a message once,
however many routers there are, and none before a router needs it; of a whole table only those endpoints and backends
are written again that have changed since the last one.
Owner: the reconcile loop posts, router streams read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeVar

from controller_service.convert.table_deltas import delta_to_wire
from controller_service.convert.tables import backend_to_bytes, endpoint_to_bytes, table_to_wire
from controller_service.core.routing import AnnouncedTable, ListedBackend, ListedEndpoint
from controller_service.core.table_deltas import find_delta
from slotmesh.v1 import membership_service_pb2 as wire

MAX_DELTAS: Final = 64
"""Deltas to the newest table that are kept: one for each table that some router is behind by."""

PartT = TypeVar("PartT", ListedEndpoint, ListedBackend)


class TableBoard:
    """Holds the newest table and wakes the streams that wait for a newer one."""

    def __init__(self) -> None:
        self.table: AnnouncedTable | None = None
        self._listeners: dict[Callable[[], None], None] = {}
        self._whole: wire.AttachRouterResponse | None = None
        """`table`, as it is sent, if anybody needed it."""
        self._deltas: dict[int, wire.AttachRouterResponse] = {}
        """What leads to `table`, by the revision that it is based on."""
        self._endpoints: dict[str, tuple[ListedEndpoint, bytes]] = {}
        """Endpoints of the newest whole table, as they were written."""
        self._backends: dict[str, tuple[ListedBackend, bytes]] = {}

    def post(self, table: AnnouncedTable) -> None:
        """Announces a table. Its revision must be newer."""
        if self.table is not None and table.revision <= self.table.revision:
            raise ValueError(f"revision {table.revision} after {self.table.revision}")
        self.table = table
        self._whole = None
        self._deltas.clear()
        for listener in self._listeners:
            listener()

    def whole(self) -> wire.AttachRouterResponse:
        """The newest table, which there must be."""
        if self.table is None:
            raise ValueError("no table was posted yet")
        if self._whole is None:
            routes = self.table.routes
            self._endpoints = _written(((it.name, it) for it in routes.endpoints), self._endpoints, endpoint_to_bytes)
            self._backends = _written(
                ((it.settings.name, it) for it in routes.backends), self._backends, backend_to_bytes
            )
            self._whole = wire.AttachRouterResponse(table=table_to_wire(self.table, self._parts()))
        return self._whole

    def since(self, base: AnnouncedTable) -> wire.AttachRouterResponse:
        """What leads from an earlier table, which was posted here, to the newest one."""
        if self.table is None:
            raise ValueError("no table was posted yet")
        known = self._deltas.get(base.revision)
        if known is None:
            delta = find_delta(base, self.table)
            known = self.whole() if delta is None else wire.AttachRouterResponse(delta=delta_to_wire(delta))
            if len(self._deltas) >= MAX_DELTAS:
                del self._deltas[next(iter(self._deltas))]
            self._deltas[base.revision] = known
        return known

    def listen(self, listener: Callable[[], None]) -> None:
        self._listeners[listener] = None

    def ignore(self, listener: Callable[[], None]) -> None:
        self._listeners.pop(listener, None)

    def _parts(self) -> Iterator[bytes]:
        for _, endpoint in self._endpoints.values():
            yield endpoint
        for _, backend in self._backends.values():
            yield backend


def _written(
    parts: Iterable[tuple[str, PartT]], before: dict[str, tuple[PartT, bytes]], write: Callable[[PartT], bytes]
) -> dict[str, tuple[PartT, bytes]]:
    """Each part and its bytes: those from before, where it is the same object."""
    written: dict[str, tuple[PartT, bytes]] = {}
    for name, part in parts:
        known = before.get(name)
        written[name] = known if known is not None and known[0] is part else (part, write(part))
    return written
