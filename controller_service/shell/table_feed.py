"""What one router is sent of routing tables: the newest as a whole at first, then what has changed since.

Invariants: a delta is based on the table that this stream has sent last; one that asks gets the newest table as a
whole, once for all requests that came before it was sent; a router that is slow gets one delta for all it has missed.
Parts of one table, or of one delta, follow each other: the next one begins behind the last part.
Owner: the stream of the router.
"""

from __future__ import annotations

from controller_service.core.routing import AnnouncedTable
from controller_service.shell.table_board import TableBoard, TableFrames
from slotmesh.v1 import membership_service_pb2 as wire


class TableFeed:
    """The frames of one stream."""

    def __init__(self, board: TableBoard, *, takes_deltas: bool, takes_parts: bool = False) -> None:
        self._board = board
        self._takes_deltas = takes_deltas
        self._takes_parts = takes_parts
        self._sent: AnnouncedTable | None = None
        self._is_asked = False
        self._frames: TableFrames | None = None
        """What is being sent."""
        self._number = 0
        """Of its next frame."""

    def asked(self) -> None:
        """The router wants the whole table."""
        self._is_asked = True

    def next_frame(self) -> wire.AttachRouterResponse | None:
        """What is to be sent now; None where there is nothing new."""
        if self._frames is not None:
            if (frame := self._frames.get(self._number)) is not None:
                self._number += 1
                return frame
            self._frames = None
        table = self._board.table
        if table is None or (table is self._sent and not self._is_asked):
            return None
        base = self._sent if self._takes_deltas and not self._is_asked else None
        self._sent, self._is_asked = table, False
        self._frames, self._number = self._board.frames(base, in_parts=self._takes_parts), 1
        return self._frames.get(0)
