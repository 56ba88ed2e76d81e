"""The newest routing table, for the streams of routers.

Invariants: the revision never goes back; each table, and each delta between two of them, becomes messages once, however
many routers there are, and none before a router needs it: parts one by one, as streams ask for them. For routers that
take one frame only, of a whole table those endpoints and backends are written again that have changed.
Owner: the reconcile loop posts, router streams read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeVar

from controller_service.convert.table_deltas import delta_to_wire
from controller_service.convert.table_parts import delta_parts, table_parts
from controller_service.convert.tables import backend_to_bytes, endpoint_to_bytes, table_to_wire
from controller_service.core.routing import AnnouncedTable, ListedBackend, ListedEndpoint
from controller_service.core.table_deltas import find_delta
from slotmesh.v1 import membership_service_pb2 as wire
from slotmesh.wire.limits import MAX_MESSAGE_BYTES, TABLE_PART_BYTES
from slotmesh.wire.partitions import PARTITIONS

MAX_DELTAS: Final = 64
"""Deltas to the newest table that are kept: one for each table that some router is behind by."""

TERM_BYTES: Final = 64
"""Room for what is added to a frame when it is sent."""

PartT = TypeVar("PartT", ListedEndpoint, ListedBackend)


class TableTooLarge(Exception):
    """A table that a router takes in one frame only, and that fits none."""

    def __init__(self, size: int) -> None:
        super().__init__(
            f"the routing table has {size} bytes in one frame, and a frame has {MAX_MESSAGE_BYTES} at most: update the"
            " router, which takes it in parts then"
        )


class TableFrames:
    """The frames of a table or a delta, each made when it is asked for first."""

    def __init__(self, frames: Iterable[wire.AttachRouterResponse]) -> None:
        self._made: list[wire.AttachRouterResponse] = []
        self._rest = iter(frames)

    def get(self, number: int) -> wire.AttachRouterResponse | None:
        """The frame of that number, from 0; None behind the last."""
        while number >= len(self._made):
            if (frame := next(self._rest, None)) is None:
                return None
            self._made.append(frame)
        return self._made[number]


class TableBoard:
    """Holds the newest table and wakes the streams that wait for a newer one."""

    def __init__(self, part_bytes: int = TABLE_PART_BYTES) -> None:
        """`part_bytes`: what a part of a table has, about."""
        self._part_bytes = part_bytes
        self.table: AnnouncedTable | None = None
        self._listeners: dict[Callable[[], None], None] = {}
        self._frames: dict[tuple[int, bool], TableFrames] = {}
        """What leads to `table`, by the revision that it is based on, 0 for the whole of it, and whether in parts."""
        self._endpoints: dict[str, tuple[ListedEndpoint, bytes]] = {}
        """Endpoints of the newest whole table in one frame, as they were written."""
        self._backends: dict[str, tuple[ListedBackend, bytes]] = {}

    def post(self, table: AnnouncedTable) -> None:
        """Announces a table. Its revision must be newer."""
        if self.table is not None and table.revision <= self.table.revision:
            raise ValueError(f"revision {table.revision} after {self.table.revision}")
        self.table = table
        self._frames.clear()
        for listener in self._listeners:
            listener()

    def frames(self, base: AnnouncedTable | None, *, in_parts: bool) -> TableFrames:
        """What leads from an earlier table, which was posted here, to the newest one; None: that one as a whole."""
        if self.table is None:
            raise ValueError("no table was posted yet")
        key = (0 if base is None else base.revision, in_parts)
        known = self._frames.get(key)
        if known is None:
            delta = None if base is None else find_delta(base, self.table)
            if base is not None and delta is None:
                known = self.frames(None, in_parts=in_parts)
            elif in_parts:
                known = TableFrames(
                    table_parts(self.table, self._part_bytes) if delta is None else delta_parts(delta, self._part_bytes)
                )
            elif delta is not None:
                known = TableFrames([_fitting(wire.AttachRouterResponse(delta=delta_to_wire(delta)))])
            else:
                _require_one_frame(self.table)
                known = TableFrames([self._whole(self.table)])
            if len(self._frames) >= MAX_DELTAS:
                del self._frames[next(iter(self._frames))]
            self._frames[key] = known
        return known

    def whole(self) -> wire.AttachRouterResponse:
        """The newest table in one frame. Raises TableTooLarge."""
        frame = self.frames(None, in_parts=False).get(0)
        if frame is None:
            raise ValueError("a table has a frame")
        return frame

    def listen(self, listener: Callable[[], None]) -> None:
        self._listeners[listener] = None

    def ignore(self, listener: Callable[[], None]) -> None:
        self._listeners.pop(listener, None)

    def _whole(self, table: AnnouncedTable) -> wire.AttachRouterResponse:
        """In one frame."""
        routes = table.routes
        self._endpoints = _written(((it.name, it) for it in routes.endpoints), self._endpoints, endpoint_to_bytes)
        self._backends = _written(((it.settings.name, it) for it in routes.backends), self._backends, backend_to_bytes)
        frame = wire.AttachRouterResponse(table=table_to_wire(table, self._parts()))
        return _fitting(frame)

    def _parts(self) -> Iterator[bytes]:
        for _, endpoint in self._endpoints.values():
            yield endpoint
        for _, backend in self._backends.values():
            yield backend


def _fitting(frame: wire.AttachRouterResponse) -> wire.AttachRouterResponse:
    """Raises TableTooLarge."""
    if (size := frame.ByteSize() + TERM_BYTES) > MAX_MESSAGE_BYTES:
        raise TableTooLarge(size)
    return frame


def _require_one_frame(table: AnnouncedTable) -> None:
    """Before it is written: what takes seconds, and does not fit in the end, is not begun. Raises TableTooLarge."""
    owned = sum(endpoint.ownership is not None for endpoint in table.routes.endpoints)
    if (size := 2 * PARTITIONS * owned) > MAX_MESSAGE_BYTES:
        raise TableTooLarge(size)


def _written(
    parts: Iterable[tuple[str, PartT]], before: dict[str, tuple[PartT, bytes]], write: Callable[[PartT], bytes]
) -> dict[str, tuple[PartT, bytes]]:
    """Each part and its bytes: those from before, where it is the same object."""
    written: dict[str, tuple[PartT, bytes]] = {}
    for name, part in parts:
        known = before.get(name)
        written[name] = known if known is not None and known[0] is part else (part, write(part))
    return written
