"""What one router is sent of routing tables: the newest as a whole at first, then what has changed since.

Invariants: a delta is based on the table that this stream has sent last; one that asks gets the newest table as a
whole, once for all requests that came before it was sent; a router that is slow gets one frame for all it has missed.
Owner: the stream of the router.
"""

from __future__ import annotations

from controller_service.core.routing import AnnouncedTable
from controller_service.shell.table_board import TableBoard
from slotmesh.v1 import membership_service_pb2 as wire


class TableFeed:
    """The frames of one stream."""

    def __init__(self, board: TableBoard, *, takes_deltas: bool) -> None:
        self._board = board
        self._takes_deltas = takes_deltas
        self._sent: AnnouncedTable | None = None
        self._is_asked = False

    def asked(self) -> None:
        """The router wants the whole table."""
        self._is_asked = True

    def next_frame(self) -> wire.AttachRouterResponse | None:
        """What is to be sent now; None where there is nothing new."""
        table = self._board.table
        if table is None or (table is self._sent and not self._is_asked):
            return None
        base = self._sent if self._takes_deltas and not self._is_asked else None
        self._sent, self._is_asked = table, False
        return self._board.whole() if base is None else self._board.since(base)
