"""Routing tables as routers get them, without a router."""

from __future__ import annotations

from controller_service.core.routing import AnnouncedTable
from controller_service.shell.members.tables import TableBoard
from slotmesh.internal.v1 import membership_service_pb2


def as_announced(table: AnnouncedTable) -> membership_service_pb2.RoutingTable:
    """The table, as a whole."""
    board = TableBoard()
    board.post(table)
    return board.whole().table
