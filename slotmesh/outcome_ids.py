"""Ids of calls in messages that bring outcomes: as ranges, to whom reads ranges, and one by one to all others.

Most outcomes are of calls that follow one by one, so that reading and writing their ids one by one costs as much as
their payloads do. The feature `id_ranges` says who reads ranges.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from operator import eq, sub

from slotmesh.batch_payloads import count_of
from slotmesh.id_ranges import ids_to_wire
from slotmesh.v1 import call_pb2
from slotmesh.wire.ranges import Range


def ids_of_results(batch: call_pb2.ResultBatch) -> Sequence[int]:
    """Whose results these are, parallel to the payloads where the sender keeps to the protocol."""
    first = batch.first_call_id
    return range(first, first + count_of(batch)) if first else batch.call_ids[:]


def write_ids(batch: call_pb2.ResultBatch, ids: Sequence[int], *, as_range: bool) -> None:
    """Says whose results these are. `as_range`: the receiver reads ranges."""
    if as_range and isinstance(ids, range):
        batch.first_call_id = ids.start
    else:
        batch.call_ids.extend(ids)


def ranges_of_failed(errors: call_pb2.CallErrors) -> list[Range]:
    """The calls that failed, where they come as ranges. A few bytes can name very many."""
    return [(each.first, each.last) for each in errors.calls]


def errors_to_wire(ids: Sequence[int], failure: call_pb2.Failure, *, as_range: bool) -> call_pb2.CallErrors:
    """Calls that failed alike. `as_range`: the receiver reads ranges; it gets them where most ids follow one by one."""
    if as_range and (isinstance(ids, range) or _follow_mostly(ids)):
        return call_pb2.CallErrors(calls=ids_to_wire(ids), failure=failure)
    return call_pb2.CallErrors(call_ids=ids, failure=failure)


def _follow_mostly(ids: Sequence[int]) -> bool:
    following: int = sum(map(eq, map(sub, ids[1:], ids), repeat(1)))
    return following * 4 >= 3 * (len(ids) - 1)
