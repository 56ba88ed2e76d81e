"""Frames <-> domain values, once a frame or run, never once a call.

Invariants: protobuf messages do not pass this edge inwards; equal options are converted once and then looked up; what
is wrong with a run fails that run's calls, what is wrong with the stream is a `BadRequest`-like error of the servicer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from math import inf
from operator import lt

from replica_service.core.calls import CallOptions, Link, Run
from replica_service.core.capacity import Capacity
from replica_service.core.ranges import Range
from replica_service.core.records import Record
from replica_service.core.sessions import Report
from slotmesh.codec import CONTENT_TYPES, OCTET_STREAM
from slotmesh.errors import Failure, Reason
from slotmesh.handlers import CALL
from slotmesh.handlers.context import NO_METADATA
from slotmesh.partitions import PARTITIONS
from slotmesh.status import to_exception
from slotmesh.v1 import call_pb2, replica_service_pb2

RejectedRun = tuple[Run, Failure]


# -- in ----------------------------------------------------------------------------------------------------------


def runs_of(frame: replica_service_pb2.RunFrame, link: Link, now: float) -> tuple[list[Run], list[RejectedRun]]:
    """The runs of a frame, and those that fail as they are.

    Raises:
        DuplicateCallId: run ids do not strictly increase.
        BadRequest: a run without payloads.
    """
    runs: list[Run] = []
    rejected: list[RejectedRun] = []
    last = link.last_run_id
    for batch in frame.batches:
        first = batch.first_run_id
        payloads = list(batch.payloads)
        if first <= last or not payloads:
            raise to_exception(_disorder(first, last, len(payloads)))
        last = first + len(payloads) - 1
        options = _options(batch.options.SerializeToString())
        deadline = now + batch.time_left.ToNanoseconds() / 1e9 if batch.HasField("time_left") else inf
        if isinstance(options, Failure):
            rejected.append((Run(link, first, payloads, _NO_OPTIONS, batch.endpoint, now), options))
            continue
        run = Run(link, first, payloads, options, batch.endpoint, now, deadline)
        if options.ordering_key:
            run.partition, run.owner_epoch = batch.partition, batch.owner_epoch
        if failure := _run_mistake(run):
            rejected.append((run, failure))
            continue
        if session_id := batch.session_id:
            record = _record(batch, session_id, len(payloads))
            if isinstance(record, Failure):
                rejected.append((run, record))
                continue
            run.record = record
        elif batch.recover:
            rejected.append((run, _NO_SESSION))
            continue
        runs.append(run)
    link.last_run_id = last
    return runs, rejected


def ranges_of(ranges: Iterable[call_pb2.IdRange]) -> list[tuple[int, int]]:
    """Ranges of ids, both ends included."""
    return [(each.first, each.last) for each in ranges]


def questions_of(frame: replica_service_pb2.Reconcile) -> list[tuple[str, int, list[Range]]]:
    """Session, epoch and calls, a session at a time."""
    return [(each.session_id, each.epoch, ranges_of(each.calls)) for each in frame.sessions]


def _record(batch: replica_service_pb2.RunBatch, session_id: str, count: int) -> Record | Failure:
    """What is kept of a run of a session."""
    epoch = batch.epoch
    if epoch < 1:
        return Failure(
            reason=Reason.BAD_REQUEST,
            message=f"epoch: must be at least 1 with a session, got {epoch}",
            metadata={"field": "epoch"},
        )
    sent = batch.call_ids
    ids: Sequence[int]
    if len(sent) == 1:
        first = sent[0]
        ids = range(first, first + count)
    elif len(sent) == count and all(map(lt, sent, sent[1:])):
        ids = tuple(sent)
    else:
        return _NO_CALL_IDS
    return Record(session_id, epoch, ids, count, attempt=batch.attempt, recovers=batch.recover)


_NO_OPTIONS = CallOptions()
_NO_CALL_IDS = Failure(
    reason=Reason.BAD_REQUEST,
    message="call_ids: a run of a session has one, or one for each call, strictly increasing",
    metadata={"field": "call_ids"},
)
_NO_SESSION = Failure(
    reason=Reason.BAD_REQUEST, message="session_id: required with recover", metadata={"field": "session_id"}
)


@lru_cache(maxsize=16_384)
def _options(raw: bytes) -> CallOptions | Failure:
    wire = call_pb2.CallOptions.FromString(raw)
    if wire.content_type and wire.content_type not in CONTENT_TYPES:
        known = ", ".join(CONTENT_TYPES)
        return Failure(
            reason=Reason.BAD_REQUEST,
            message=f"options.content_type: must be one of {known}, got {wire.content_type!r}",
            metadata={"field": "options.content_type"},
        )
    return CallOptions(
        method="" if wire.method == CALL else wire.method,
        content_type=wire.content_type or OCTET_STREAM,
        ordering_key=wire.ordering_key,
        metadata=dict(wire.metadata) or NO_METADATA,
        no_reply=wire.no_reply,
    )


def _run_mistake(run: Run) -> Failure | None:
    if not 0 <= run.partition < PARTITIONS:
        return Failure(
            reason=Reason.BAD_REQUEST,
            message=f"partition: must be 0 … {PARTITIONS - 1}, got {run.partition}",
            metadata={"field": "partition"},
        )
    return None


def _disorder(first: int, last: int, count: int) -> Failure:
    if not count:
        return Failure(
            reason=Reason.BAD_REQUEST,
            message="runs.batches.payloads: a run has at least one",
            metadata={"field": "runs.batches.payloads"},
        )
    return Failure(
        reason=Reason.DUPLICATE_CALL_ID,
        message=f"runs.batches.first_run_id: run ids strictly increase on a stream, got {first} after {last}",
        metadata={"field": "runs.batches.first_run_id"},
    )


# -- out ---------------------------------------------------------------------------------------------------------


def capacity_to_wire(capacity: Capacity) -> call_pb2.Capacity:
    """A report for one router."""
    return call_pb2.Capacity(
        ongoing=capacity.ongoing,
        max_ongoing=capacity.max_ongoing,
        waiting=capacity.waiting,
        prefetch=capacity.prefetch,
        keyed_window=capacity.keyed_window,
        draining=capacity.draining,
        others=capacity.others,
    )


def id_ranges(ids: Sequence[tuple[int, int]]) -> list[call_pb2.IdRange]:
    """Ranges given as (first, count)."""
    return [call_pb2.IdRange(first=first, last=first + count - 1) for first, count in ids]


def reconciled_to_wire(answers: Iterable[tuple[str, int, Report]]) -> replica_service_pb2.Reconciled:
    """What became of calls: session, epoch, report."""
    wire = replica_service_pb2.Reconciled()
    for session_id, epoch, report in answers:
        wire.joined.append(_session_calls(session_id, epoch, report.running))
        if report.kept:
            wire.kept.append(_session_calls(session_id, epoch, report.kept))
        if report.evicted:
            wire.evicted.append(_session_calls(session_id, epoch, report.evicted))
    return wire


def _session_calls(session_id: str, epoch: int, ranges: Iterable[Range]) -> replica_service_pb2.SessionCalls:
    calls = [call_pb2.IdRange(first=first, last=last) for first, last in ranges]
    return replica_service_pb2.SessionCalls(session_id=session_id, epoch=epoch, calls=calls)
