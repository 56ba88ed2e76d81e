"""Calls in, runs out, results in: the columns of frames, as lists and ranges.

Owner: pure functions of the router's edge.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from math import inf

from router_service.convert.options import without_ordering_key
from router_service.core.frames import OutgoingBatch
from router_service.core.replicas import Capacity
from slotmesh.errors import Failure, Reason
from slotmesh.status import from_wire
from slotmesh.v1 import call_pb2, replica_service_pb2, router_service_pb2

MAX_PAYLOAD_BYTES = 4 * 1024 * 1024
"""Largest payload that travels inline."""


def too_large(size: int) -> Failure:
    """What the caller of an oversize payload hears."""
    return Failure(
        reason=Reason.PAYLOAD_TOO_LARGE,
        message=f"the payload has {size} bytes; at most {MAX_PAYLOAD_BYTES} bytes are allowed",
        metadata={"actual": str(size), "limit": str(MAX_PAYLOAD_BYTES)},
    )


def ids_of(batch: router_service_pb2.CallBatch) -> Sequence[int] | Failure:
    """The call ids of a batch, parallel to its payloads."""
    count = len(batch.payloads)
    if not count:
        return Failure(
            reason=Reason.BAD_REQUEST, message="payloads: a batch has at least one", metadata={"field": "payloads"}
        )
    if not batch.call_ids:
        return range(batch.first_call_id, batch.first_call_id + count)
    if len(batch.call_ids) != count:
        return Failure(
            reason=Reason.BAD_REQUEST,
            message=f"call_ids: {len(batch.call_ids)} ids for {count} payloads; they must be as many",
            metadata={"field": "call_ids"},
        )
    return list(batch.call_ids)


def add_batch(frame: replica_service_pb2.RunFrame, outgoing: OutgoingBatch, now: float) -> None:
    """Adds calls to a frame for a replica."""
    batch = frame.batches.add(first_run_id=outgoing.first_run_id, endpoint=outgoing.endpoint, attempt=outgoing.attempt)
    options = outgoing.options
    wire = options.wire
    if outgoing.partition >= 0:
        batch.partition = outgoing.partition
        batch.owner_epoch = outgoing.owner_epoch
    elif options.ordering_key:
        wire = without_ordering_key(wire)
    batch.options.MergeFromString(wire)
    batch.payloads.extend(outgoing.payloads)
    if (session := outgoing.session) is not None:
        ids = outgoing.call_ids
        batch.session_id = session.session_id
        batch.epoch = session.epoch
        batch.call_ids.extend(ids[:1] if isinstance(ids, range) else ids)
        batch.recover = outgoing.recovers
    if outgoing.deadline != inf:
        batch.time_left.FromNanoseconds(max(0, int((outgoing.deadline - now) * 1e9)))


def results_of(frame: call_pb2.ResultFrame) -> list[tuple[list[int], list[bytes], str]]:
    """Run ids, payloads and content type of each batch."""
    return [(list(batch.call_ids), list(batch.payloads), batch.content_type) for batch in frame.batches]


def failures_of(frame: call_pb2.ResultFrame) -> list[tuple[list[int], Failure]]:
    """Run ids and failure of each group of calls that failed alike."""
    return [(list(errors.call_ids), from_wire(errors.failure)) for errors in frame.errors]


def run_ids_of(ranges: Iterable[call_pb2.IdRange]) -> list[int]:
    """The ids that ranges stand for."""
    return list(chain.from_iterable(range(each.first, each.last + 1) for each in ranges))


def ranges_of(ranges: Iterable[call_pb2.IdRange]) -> list[tuple[int, int]]:
    """Ranges of ids, both ends included."""
    return [(each.first, each.last) for each in ranges]


def ranges_to_wire(ranges: Iterable[tuple[int, int]]) -> list[call_pb2.IdRange]:
    """Ranges of ids, both ends included."""
    return [call_pb2.IdRange(first=first, last=last) for first, last in ranges]


def ranges_of_ids(ids: Sequence[int]) -> list[call_pb2.IdRange]:
    """Ids in order, as ranges."""
    if isinstance(ids, range):
        return [call_pb2.IdRange(first=ids[0], last=ids[-1])] if ids else []
    ranges: list[call_pb2.IdRange] = []
    for each in ids:
        if ranges and ranges[-1].last == each - 1:
            ranges[-1].last = each
        else:
            ranges.append(call_pb2.IdRange(first=each, last=each))
    return ranges


def capacity_from_wire(wire: call_pb2.Capacity) -> Capacity:
    """A replica's report."""
    return Capacity(
        max_ongoing=max(1, wire.max_ongoing),
        prefetch=wire.prefetch,
        others=wire.others,
        keyed_window=wire.keyed_window,
        draining=wire.draining,
    )
