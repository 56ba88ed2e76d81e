"""Routing tables on the wire in one message, as tests write and read them: their parts merged, or cut into one part."""

from __future__ import annotations

from collections.abc import Iterable

from controller_service.convert.routers import EarlierTableAssembly
from controller_service.core.roster import EarlierTable
from controller_service.core.routing import AnnouncedTable
from controller_service.shell.members.tables import TableBoard, TableFrames
from router_service import convert
from router_service.core.routing_table import RoutingTable, TableDelta
from slotmesh.internal.v1 import membership_service_pb2 as pb

NO_TABLE = RoutingTable()
NO_OWNERS = pb.PartitionAssignment()


def one_part(table: pb.RoutingTable) -> pb.TablePart:
    """A table in one part."""
    return pb.TablePart(table=table, is_first=True, is_last=True)


def one_delta(delta: pb.RoutingTableDelta) -> pb.TablePart:
    """A delta in one part."""
    return pb.TablePart(delta=delta, is_first=True, is_last=True)


def merged(parts: Iterable[pb.TablePart]) -> pb.RoutingTable | pb.RoutingTableDelta:
    """The table or the delta that these parts are."""
    whole = pb.TablePart()
    for part in parts:
        whole.MergeFrom(part)
    return whole.delta if whole.HasField("delta") else whole.table


def all_parts(frames: TableFrames) -> list[pb.TablePart]:
    """Of a table or a delta of a controller."""
    parts, number = list[pb.TablePart](), 0
    while (frame := frames.get(number)) is not None:
        parts.append(frame.table_part)
        number += 1
    return parts


def as_announced(table: AnnouncedTable) -> pb.RoutingTable:
    """The table as routers get it, without a router."""
    board = TableBoard()
    board.post(table)
    whole = merged(all_parts(board.frames(None)))
    assert isinstance(whole, pb.RoutingTable)
    return whole


def table_from_wire(wire: pb.RoutingTable, before: RoutingTable = NO_TABLE) -> RoutingTable:
    """As a router reads it."""
    assembly = convert.TableAssembly(wire, before)
    assembly.add(wire)
    return assembly.finish()


def delta_from_wire(wire: pb.RoutingTableDelta, before: RoutingTable) -> TableDelta:
    """As a router reads it."""
    assembly = convert.DeltaAssembly(wire, before)
    assembly.add(wire)
    return assembly.finish()


def reported(table: RoutingTable) -> pb.RoutingTable:
    """The table that a router sends to its controller."""
    whole = merged(convert.table_to_parts(table))
    assert isinstance(whole, pb.RoutingTable)
    return whole


def earlier_table_from_wire(wire: pb.RoutingTable, *, generation: str, now: float) -> EarlierTable | None:
    """As a controller of this generation reads the table that a router sends."""
    assembly = EarlierTableAssembly(generation, now)
    for _ in assembly.add(wire):
        pass
    return assembly.finish()


def owners_of(table: pb.RoutingTable, endpoint: str = "") -> pb.PartitionAssignment:
    """The owners of the partitions of an endpoint, empty: of the first one. None of an endpoint that is not there."""
    for route in table.endpoints:
        if not endpoint or route.name == endpoint:
            return table.assignments[route.assignment - 1] if route.assignment else NO_OWNERS
    return NO_OWNERS


def linked_ids(report: pb.RouterReport) -> list[str]:
    """The replicas to which a router reports a link."""
    return [it.replica_id for it in report.linked]
