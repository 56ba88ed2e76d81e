"""The calls that a session has unanswered, as its client has told: small, and ready to be asked for.

Purpose: a session that moves can bring thousands of ranges, each replica is asked about all of them, and they are kept
for as long as the connection. So they are two numbers each, and what replicas are asked is written once, a part at a
time.
Owner: the session.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import overload

from slotmesh.id_ranges import ranges_from_wire, ranges_to_wire
from slotmesh.v1 import call_pb2, replica_service_pb2
from slotmesh.wire.ranges import Range


class Spans(Sequence[Range]):
    """Ranges of call ids, both ends included."""

    __slots__ = ("_asked", "_ends")

    def __init__(self, ranges: Sequence[call_pb2.IdRange] = ()) -> None:
        self._asked = bytearray()
        self._ends = array("q")
        """First and last id of each, in turn."""
        self.add(ranges)

    def add(self, ranges: Sequence[call_pb2.IdRange]) -> list[Range]:
        """These come behind what there is. Returns them."""
        spans = ranges_from_wire(ranges)
        self._ends.extend(chain.from_iterable(spans))
        # What two messages hold is what both hold in turn, as bytes.
        self._asked += replica_service_pb2.SessionCalls(calls=ranges).SerializeToString()
        return spans

    @property
    def asked(self) -> bytes:
        """`SessionCalls` with these calls."""
        return bytes(self._asked)

    def __len__(self) -> int:
        return len(self._ends) // 2

    def __iter__(self) -> Iterator[Range]:
        return zip(self._ends[::2], self._ends[1::2], strict=True)

    @overload
    def __getitem__(self, at: int) -> Range: ...

    @overload
    def __getitem__(self, at: slice) -> list[Range]: ...

    def __getitem__(self, at: int | slice) -> Range | list[Range]:
        if isinstance(at, slice):
            return list(self)[at]
        at = range(len(self))[at]
        return self._ends[2 * at], self._ends[2 * at + 1]


def asked_of(spans: Sequence[Range]) -> bytes:
    """`SessionCalls` with these calls."""
    if isinstance(spans, Spans):
        return spans.asked
    return replica_service_pb2.SessionCalls(calls=ranges_to_wire(spans)).SerializeToString()
