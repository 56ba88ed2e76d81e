"""Ranges of ids in messages have both ends included."""

from __future__ import annotations

from slotmesh.convert.batches import ids_from_wire, ids_to_wire, ranges_from_wire, ranges_to_wire
from slotmesh.v1 import call_pb2

RANGES = [call_pb2.IdRange(first=1, last=3), call_pb2.IdRange(first=7, last=7), call_pb2.IdRange(first=9, last=8)]


def test_ranges_are_as_they_came() -> None:
    assert ranges_from_wire(RANGES) == [(1, 3), (7, 7), (9, 8)]
    assert ranges_to_wire([(1, 3), (7, 7), (9, 8)]) == RANGES


def test_ids_are_those_that_ranges_stand_for() -> None:
    assert ids_from_wire(RANGES) == [1, 2, 3, 7]
    assert ids_to_wire([1, 2, 3, 7]) == RANGES[:2]
    assert ids_to_wire(range(4, 6)) == [call_pb2.IdRange(first=4, last=5)]
