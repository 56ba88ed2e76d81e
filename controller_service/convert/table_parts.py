"""Routing tables, and what has changed of them, in parts: as routers get them that take parts.

Invariants: the parts merged in order say what the table, or the delta, says in one frame; owners of partitions that
endpoints share are written once; a part is made when it is asked for, so that no table holds the event loop.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import Final, TypeAlias

from controller_service.convert.table_deltas import backend_change_to_wire, endpoint_change_to_wire, head_of_delta
from controller_service.convert.tables import backend_to_wire_route, endpoint_to_wire, head_of_table, write_owners
from controller_service.core.partitions import PartitionOwnership
from controller_service.core.routing import AnnouncedTable, ListedEndpoint
from controller_service.core.table_deltas import AnnouncedDelta, EndpointChange
from slotmesh.v1 import membership_service_pb2 as wire

Piece: TypeAlias = tuple[
    str,
    wire.EndpointRoute
    | wire.BackendRoute
    | wire.EndpointRouteDelta
    | wire.BackendRouteDelta
    | wire.PartitionAssignment,
]
"""The field of a table, or of a delta, to which something is appended, and that."""
_ENDPOINTS: Final = "endpoints"
_BACKENDS: Final = "backends"
_ASSIGNMENTS: Final = "assignments"


def table_parts(table: AnnouncedTable, part_bytes: int) -> Iterator[wire.AttachRouterResponse]:
    """The whole table, in parts of about this size. Backends are in front: endpoints name their replicas."""
    backends = ((_BACKENDS, backend_to_wire_route(it, it.replicas, has_settings=True)) for it in table.routes.backends)
    return _cut(
        wire.TablePart(table=head_of_table(table)), chain(backends, _endpoints(table.routes.endpoints)), part_bytes
    )


def delta_parts(delta: AnnouncedDelta, part_bytes: int) -> Iterator[wire.AttachRouterResponse]:
    """What has changed, likewise."""
    backends = ((_BACKENDS, backend_change_to_wire(it)) for it in delta.backends)
    return _cut(wire.TablePart(delta=head_of_delta(delta)), chain(backends, _changes(delta.endpoints)), part_bytes)


def _endpoints(endpoints: Iterable[ListedEndpoint]) -> Iterator[Piece]:
    """Endpoints, each behind its owners, where these are new."""
    numbers: dict[int, int] = {}
    for endpoint in endpoints:
        yield from _new_owners(endpoint.ownership, numbers)
        yield _ENDPOINTS, endpoint_to_wire(endpoint, assignment=numbers.get(id(endpoint.ownership), 0))


def _changes(changes: Sequence[EndpointChange]) -> Iterator[Piece]:
    """Endpoints that have changed; as a whole, where others have the same new owners: these are written once then."""
    numbers: dict[int, int] = {}
    sharing = Counter(id(change.listed.ownership) for change in changes if change.moved)
    for change in changes:
        ownership = change.listed.ownership
        if change.is_whole or (change.moved and sharing[id(ownership)] > 1):
            yield from _new_owners(ownership, numbers)
            number = numbers.get(id(ownership), 0)
            yield _ENDPOINTS, endpoint_change_to_wire(replace(change, is_whole=True), assignment=number)
        else:
            yield _ENDPOINTS, endpoint_change_to_wire(change)


def _new_owners(ownership: PartitionOwnership | None, numbers: dict[int, int]) -> Iterator[Piece]:
    """`numbers` are those of the owners that were written, by object; they are alive as long as the table is."""
    if ownership is not None and id(ownership) not in numbers:
        numbers[id(ownership)] = len(numbers) + 1
        assignment = wire.PartitionAssignment()
        write_owners(ownership, assignment)
        yield _ASSIGNMENTS, assignment


def _cut(part: wire.TablePart, pieces: Iterator[Piece], part_bytes: int) -> Iterator[wire.AttachRouterResponse]:
    """Parts of about the same size; `part` is the first one, and goes on."""
    part.is_first = True
    is_delta, size = part.HasField("delta"), part.ByteSize()
    for field, piece in pieces:
        if size >= part_bytes:
            yield wire.AttachRouterResponse(table_part=part)
            part, size = wire.TablePart(), 0
            (part.delta if is_delta else part.table).SetInParent()
        getattr(part.delta if is_delta else part.table, field).append(piece)
        size += piece.ByteSize()
    part.is_last = True
    yield wire.AttachRouterResponse(table_part=part)
