"""Converts the batches of a `RunFrame` to runs: one per batch, or one per stretch of equal keys.

Cost is per batch and per key. An invalid batch fails its calls, and the other batches are unaffected. Equal call
options are converted once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import zip_longest
from math import inf
from operator import lt
from typing import NamedTuple

from replica_service.core.call_metadata import (
    MAX_CREDIT,
    AnswerHeads,
    Arrival,
    HandlerCredit,
    ReplicaCallOptions,
    RerunOrigin,
)
from replica_service.core.call_states import CallState
from replica_service.core.runs import ReplicaRun, RouterPeer, RunRecord
from replica_service.core.session_records import Record
from slotmesh.calls.call_options import Reader
from slotmesh.calls.id_ranges import Range
from slotmesh.calls.key_hash import PARTITIONS
from slotmesh.calls.request_ids import CallIdentity
from slotmesh.calls.result_envelopes import RPC_TYPES
from slotmesh.calls.trace_context import TraceColumns, TraceContext, Traces
from slotmesh.codec import CONTENT_TYPES, OCTET_STREAM
from slotmesh.convert import call_options as stated
from slotmesh.convert.batches import block_problem, count_of, list_of
from slotmesh.errors import Failure, Reason
from slotmesh.handlers import CALL
from slotmesh.internal.v1 import replica_service_pb2
from slotmesh.spec.rules import show
from slotmesh.status import to_exception
from slotmesh.streams.limits import MAX_ELEMENTS, MAX_PAYLOAD_BYTES
from slotmesh.v1 import call_pb2
from slotmesh.version import VERSION

_KNOWN_TYPES = frozenset({*CONTENT_TYPES, *RPC_TYPES})
NO_OPTIONS = ReplicaCallOptions()
MAX_KNOWN_BYTES = 512
"""Larger options are converted each time, which bounds the size of the cache."""
MAX_NEIGHBOURS = 64
"""Calls of one batch with a column of keys that share a record."""
_NO_TRACES: Traces = {}


def options_from_wire(raw: bytes) -> ReplicaCallOptions | Failure:
    """Converts call options. Equal options share one object, unless they are large."""
    return _known_options(raw) if len(raw) <= MAX_KNOWN_BYTES else _options(raw)


@lru_cache(maxsize=16_384)
def _known_options(raw: bytes) -> ReplicaCallOptions | Failure:
    return _options(raw)


def _options(raw: bytes) -> ReplicaCallOptions | Failure:
    wire = call_pb2.CallOptions.FromString(raw)
    if wire.content_type and wire.content_type not in _KNOWN_TYPES:
        known = ", ".join(CONTENT_TYPES)
        return bad_request("options.content_type", f"must be one of {known}, got {show(wire.content_type)!r}")
    fields = stated.options_from_wire(wire, Reader.REPLICA)
    fields.setdefault("content_type", OCTET_STREAM)
    if wire.method == CALL:
        fields["method"] = ""
    return ReplicaCallOptions(**fields)


def with_credit(options: ReplicaCallOptions, values: int, nbytes: int) -> ReplicaCallOptions:
    """Returns the options with this credit. Values outside 1 … `MAX_CREDIT` mean the maximum."""
    most = MAX_CREDIT
    credit = HandlerCredit(
        values if 0 < values < most.values else most.values, nbytes if 0 < nbytes < most.bytes else most.bytes
    )
    return options if credit == most else replace(options, credit=credit)


def bad_request(field: str, problem: str) -> Failure:
    """Returns the failure for an invalid field of a router's or its client's message."""
    return Failure(reason=Reason.BAD_REQUEST, message=f"{field}: {problem}", metadata={"field": field})


STARTING = Failure(reason=Reason.BACKEND_UNAVAILABLE, message="the replica is starting", retry_delay_s=1.0)
NOT_OPENED = Failure(reason=Reason.BAD_REQUEST, message="the first frame must be open", metadata={"field": "open"})
OPENED_AGAIN = bad_request("open", "the stream is open already")
UNKNOWN_FRAME = Failure(
    reason=Reason.NOT_IMPLEMENTED,
    message=f"unknown frame: slotmesh {VERSION} does not take this frame",
)

RejectedRun = tuple[ReplicaRun, Failure]


class Arrived(NamedTuple):
    """The contents of a frame."""

    runs: list[ReplicaRun]
    rejected: list[RejectedRun]
    """Invalid runs and their failures."""
    announced: dict[int, int]
    """Sizes in bytes, by run id, of payloads that arrive in chunks. Each such call is a run of its own."""


def runs_of(
    frame: replica_service_pb2.RunFrame,
    link: RouterPeer,
    now: float,
    cut: Sequence[bytes] = (),
    *,
    most_traced: int = 0,
) -> Arrived:
    """Returns the runs of a frame. A sampled call is a run of its own, for at most `most_traced` calls per trace.

    Raises:
        DuplicateCallId: run ids do not strictly increase.
        BadRequest: a run without payloads, or whose payloads cannot be read.
    """
    runs: list[ReplicaRun] = []
    rejected: list[RejectedRun] = []
    announced: dict[int, int] = {}
    last, calls = link.last_run_id, 0
    for batch in frame.batches:
        first = batch.first_run_id
        payloads = _payloads(batch, MAX_ELEMENTS - calls, cut)
        calls += len(payloads)
        if first <= last or not payloads:
            raise to_exception(disorder("runs.batches.first_run_id", first, last) if payloads else _EMPTY)
        last = first + len(payloads) - 1
        options = options_from_wire(batch.options.SerializeToString())
        deadline = now + batch.time_left.ToNanoseconds() / 1e9 if batch.HasField("time_left") else inf
        if isinstance(options, Failure):
            rejected.append((ReplicaRun(link, first, payloads, NO_OPTIONS, batch.endpoint, now), options))
            continue
        if options.streaming:
            options = with_credit(options, batch.values_ahead, batch.bytes_ahead)
        run = ReplicaRun(link, first, payloads, options, batch.endpoint, now, deadline)
        if batch.max_result_bytes > 0:
            run.max_result_bytes = min(run.max_result_bytes, batch.max_result_bytes)
        has_columns = bool(batch.ordering_keys or batch.chunked_sizes)
        if (arrival := _arrival(batch, first, len(payloads))) is not None:
            if isinstance(arrival, Failure):
                rejected.append((run, arrival))
                continue
            run.arrival = arrival._replace(heads=AnswerHeads(options.http)) if options.http else arrival
        if batch.HasField("request"):
            if run.hi > 1 or batch.ordering_keys or batch.session_id:
                rejected.append((run, _NOT_ALONE))
                continue
            run.request = identity_from_wire(batch.request)
        if run.is_keyed and not batch.ordering_keys:
            run.partition, run.owner_epoch = batch.partition, batch.owner_epoch
        if failure := (_column_failure(batch, run) if has_columns else None) or _batch_failure(batch, run):
            rejected.append((run, failure))
            continue
        if session_id := batch.session_id:
            run.record = _record(batch, session_id, len(payloads))
        elif batch.attempt and batch.origin_stream_id:
            ids = _ids(batch.origin_run_ids, len(payloads))
            run.origin = RerunOrigin(batch.origin_stream_id, ids, batch.attempt)
        runs += _parts(batch, run, announced, most_traced)
    link.last_run_id = last
    return Arrived(runs, rejected, announced)


def identity_from_wire(wire: replica_service_pb2.RequestIdentity) -> CallIdentity:
    """Converts the identity of a call with a request id."""
    return CallIdentity(wire.id, wire.digest, wire.caller)


def _parts(
    batch: replica_service_pb2.RunBatch, whole: ReplicaRun, announced: dict[int, int], most_traced: int
) -> Iterator[ReplicaRun]:
    """Splits the run of a valid batch into the runs that the scheduler gets."""
    arrival, sampled = whole.arrival, dict[int, TraceContext]()
    if most_traced and arrival is not None and arrival.traces and not batch.recover:
        sampled = arrival.sampled(most_traced)
    if batch.recover or not (batch.ordering_keys or batch.chunked_sizes):
        yield from _sampled_apart(whole, sampled) if sampled else (whole,)
    elif batch.chunked_sizes:
        yield from _announced(batch, whole, announced, sampled)
    else:
        for part in _cut(whole, 1 if batch.attempt else MAX_NEIGHBOURS):
            yield from _by_key(batch, part, part.first - whole.first, sampled)


def _payloads(batch: replica_service_pb2.RunBatch, most: int, cut: Sequence[bytes]) -> list[bytes]:
    """`cut`: the payloads of the only batch of a frame, if they are not in it."""
    if error := block_problem(batch):
        field, problem = error
        raise to_exception(bad_request(f"runs.batches.{field}", problem))
    if count_of(batch) > most:
        raise to_exception(_TOO_MANY)
    return list(cut) or list_of(batch)


def _cut(run: ReplicaRun, most: int) -> Iterator[ReplicaRun]:
    """Cuts the run into parts of at most `most` calls, each with its own record, so that lookups stay short."""
    if run.hi <= most:
        yield run
        return
    for lo in range(0, run.hi, most):
        yield run.cut_out(lo, min(lo + most, run.hi))


def _announced(
    batch: replica_service_pb2.RunBatch,
    whole: ReplicaRun,
    announced: dict[int, int],
    sampled: Mapping[int, TraceContext],
) -> Iterator[ReplicaRun]:
    """Returns one run per call, so that a call with a complete payload waits only for earlier calls of its key."""
    sizes = batch.chunked_sizes
    for index in range(whole.hi):
        run = whole.cut_out(index, index + 1)
        if batch.ordering_keys:
            run.ordering_key = batch.ordering_keys[index]
            run.partition, run.owner_epoch = batch.partitions[index], batch.owner_epochs[index]
        run.traced = sampled.get(run.first)
        if sizes[index]:
            run.state = CallState.UPLOADING
            announced[run.first] = sizes[index]
        yield run


def _sampled_apart(whole: ReplicaRun, sampled: Mapping[int, TraceContext]) -> Iterator[ReplicaRun]:
    """Returns the calls in order, each sampled call as a run of its own."""
    if whole.hi == 1:
        whole.traced = sampled.get(whole.first)
        yield whole
        return
    lo = 0
    for run_id, trace in sampled.items():
        at = run_id - whole.first
        if lo < at:
            yield whole.cut_out(lo, at)
        alone = whole.cut_out(at, at + 1)
        alone.traced = trace
        yield alone
        lo = at + 1
    if lo < whole.hi:
        yield whole.cut_out(lo, whole.hi)


def _by_key(
    batch: replica_service_pb2.RunBatch, whole: ReplicaRun, begin: int, sampled: Mapping[int, TraceContext]
) -> list[ReplicaRun]:
    """Splits the run, which starts at index `begin` of the batch, into neighbours: one run per stretch of a key.

    A sampled call is a stretch of its own.
    """
    link, first, payloads, record = whole.link, whole.first, whole.payloads, whole.record
    options, endpoint, now, deadline = whole.options, whole.endpoint, whole.arrived, whole.deadline
    end = begin + len(payloads)
    keys, partitions, epochs = batch.ordering_keys, batch.partitions, batch.owner_epochs
    lanes = list(zip(keys[begin:end], partitions[begin:end], epochs[begin:end], strict=True))
    runs: list[ReplicaRun] = []
    lo = hi = 0
    for lane, after in zip_longest(lanes, lanes[1:]):
        hi += 1
        if lane == after and not (sampled and (first + hi - 1 in sampled or first + hi in sampled)):
            continue
        run = ReplicaRun(link, first, payloads, options, endpoint, now, deadline, begin=lo, end=hi)
        run.ordering_key, run.partition, run.owner_epoch = lane
        run.record, run.origin, run.max_result_bytes = record, whole.origin, whole.max_result_bytes
        run.arrival = whole.arrival
        if sampled:
            run.traced = sampled.get(first + lo)
        runs.append(run)
        lo = hi
    if record is not None:
        record.runs = list(runs)
    return runs


def _arrival(batch: replica_service_pb2.RunBatch, first: int, count: int) -> Arrival | Failure | None:
    """Returns what the batch states about the origin of its calls; None if it states nothing."""
    waited_us = batch.waited_us
    waited_s = waited_us / 1e6 if waited_us > 0 else None
    if not batch.HasField("origins"):
        return None if waited_s is None else Arrival(waited_s, False, first, (), _NO_TRACES)
    origins = batch.origins
    for name, keys in (("shard_keys", origins.shard_keys), ("affinity_keys", origins.affinity_keys)):
        if len(keys) not in {0, 1, count}:
            return bad_request(f"origins.{name}", f"{len(keys)} of them for {count} payloads")
    columns = TraceColumns(origins.trace_starts, origins.traceparents, origins.tracestates, origins.http_requests)
    if error := columns.problem(count):
        return bad_request(f"origins.{error[0]}", error[1])
    traces = columns.by_id(range(first, first + count))
    shard_keys, affinity_keys = tuple(origins.shard_keys), tuple(origins.affinity_keys)
    return Arrival(waited_s, origins.shadow, first, shard_keys, traces, affinity_keys)


def _record(batch: replica_service_pb2.RunBatch, session_id: str, count: int) -> RunRecord:
    """Returns the record of a session's run. The batch has been validated."""
    ids = _ids(batch.call_ids, count)
    return Record(session_id, batch.epoch, ids, count, attempt=batch.attempt, recovers=batch.recover)


def _ids(sent: Sequence[int], count: int) -> Sequence[int]:
    """Returns `count` ids. A single id stands for that many consecutive ones."""
    return range(sent[0], sent[0] + count) if len(sent) == 1 else tuple(sent)


def _batch_failure(batch: replica_service_pb2.RunBatch, run: ReplicaRun) -> Failure | None:
    """Returns the failure of all calls of an invalid batch."""
    if not 0 <= run.partition < PARTITIONS:
        return bad_request("partition", f"must be 0 … {PARTITIONS - 1}, got {run.partition}")
    if not batch.session_id:
        if batch.origin_stream_id and len(batch.origin_run_ids) not in {1, run.hi}:
            return bad_request("origin_run_ids", "with origin_stream_id there is one, or one for each call")
        return bad_request("session_id", "is required with recover") if batch.recover else None
    if batch.epoch < 1:
        return bad_request("epoch", f"must be at least 1 with a session, got {batch.epoch}")
    sent = batch.call_ids
    if len(sent) != 1 and not (len(sent) == run.hi and all(map(lt, sent, sent[1:]))):
        return bad_request("call_ids", "a run of a session has one, or one for each call, strictly increasing")
    return None


def _column_failure(batch: replica_service_pb2.RunBatch, run: ReplicaRun) -> Failure | None:
    """Like `_batch_failure`, for a batch with columns besides its payloads."""
    count, partitions, sizes = run.hi, batch.partitions, batch.chunked_sizes
    if batch.ordering_keys:
        counts = (len(batch.ordering_keys), len(partitions), len(batch.owner_epochs))
        for name, got in zip(("ordering_keys", "partitions", "owner_epochs"), counts, strict=True):
            if got != count:
                return bad_request(name, f"{got} of them for {count} payloads")
        if min(partitions) < 0 or max(partitions) >= PARTITIONS:
            return bad_request("partitions", f"must be 0 … {PARTITIONS - 1}")
    if not sizes:
        return None
    if len(sizes) != count:
        return bad_request("chunked_sizes", f"{len(sizes)} of them for {count} payloads")
    if min(sizes) < 0:
        return bad_request("chunked_sizes", f"must not be negative, got {min(sizes)}")
    if any(size and payload for size, payload in zip(sizes, run.payloads, strict=True)):
        return bad_request("chunked_sizes", "a payload that comes in chunks is empty in its batch")
    if max(sizes) > MAX_PAYLOAD_BYTES:
        return Failure(
            reason=Reason.PAYLOAD_TOO_LARGE,
            message=f"chunked_sizes: at most {MAX_PAYLOAD_BYTES} bytes, got {max(sizes)}",
            metadata={"field": "chunked_sizes", "limit": str(MAX_PAYLOAD_BYTES), "actual": str(max(sizes))},
        )
    return None


def disorder(field: str, first: int, last: int) -> Failure:
    """Returns the failure that ends a stream whose run ids, in this field, do not increase."""
    return Failure(
        reason=Reason.DUPLICATE_CALL_ID,
        message=f"{field}: run ids strictly increase on a stream, got {first} after {last}",
        metadata={"field": field},
    )


_TOO_MANY = bad_request("runs.batches.payloads", f"one frame has at most {MAX_ELEMENTS} in all; send several frames")
_NOT_ALONE = bad_request("request", "only a single call without a session, and without a column of keys, has one")
_EMPTY = bad_request("runs.batches.payloads", "a run has at least one")


def questions_of(frame: replica_service_pb2.Reconcile) -> list[tuple[str, int, Iterator[Range]]]:
    """Returns session id, epoch and call id ranges for each session of a router's query. Ranges are read lazily.

    Raises:
        BadRequest: the frame has more ranges of calls than the limit.
    """
    if (asked := sum(len(each.calls) for each in frame.sessions)) > MAX_ELEMENTS:
        problem = f"at most {MAX_ELEMENTS} ranges in one frame, got {asked}"
        raise to_exception(bad_request("reconcile.sessions.calls", problem))
    return [
        (each.session_id, each.epoch, ((calls.first, calls.last) for calls in each.calls)) for each in frame.sessions
    ]
