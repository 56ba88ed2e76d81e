"""The columns of frames as lists and ranges: calls in, runs out, results in; and reports of replicas.

Owner: pure functions of the router's edge.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from math import inf, isfinite
from types import MappingProxyType
from typing import Final

from router_service.convert.options import put_identity
from router_service.core.callers import CREDITS
from router_service.core.calls import CallPayload, Failures, Results
from router_service.core.events import HandlerStateReported
from router_service.core.limits.capacity import MethodTime, ReportedCapacity
from router_service.core.replicas.frames import OutgoingBatch
from router_service.core.replicas.replica import RoutedReplica
from slotmesh.calls.handler_figures import MAX_EVICTED, MAX_FIGURE_CHARS, MAX_FIGURES, MAX_MODELS, Evicted
from slotmesh.calls.method_outlines import DATATYPES, MAX_DESCRIBED, MethodTensors, TensorType
from slotmesh.calls.payload_block import PayloadBlock
from slotmesh.calls.trace_context import TraceColumns, TraceContext, columns_of
from slotmesh.convert import batches as batch_payloads
from slotmesh.convert.batches import FramePayloads, block_problem, count_of, ids_from_wire, ids_of_results
from slotmesh.errors import Executed, Failure, Reason, bad_field
from slotmesh.internal.v1 import replica_service_pb2
from slotmesh.oip.model import MAX_DIMENSIONS, MAX_INPUTS
from slotmesh.status import from_wire
from slotmesh.streams.chunks import Announced, Payload
from slotmesh.streams.limits import MAX_ELEMENTS, MAX_INLINE_BYTES
from slotmesh.v1 import call_pb2, router_service_pb2

MAX_WAITED_US = 10**15
"""About thirty years: the bound of the age that clients report for resent calls."""


STREAM_REQUESTS: Final = "an rpc that streams requests takes more in several of them"
STREAM_RESPONSES: Final = "an rpc that streams responses returns more in several of them"
SPLIT_BATCH: Final = "split the batch"
"""The ways out where there are no chunks: of rpcs of users' own protos, and of inferences."""


def too_large(size: int, limit: int = MAX_INLINE_BYTES, fix: str = "larger ones are sent in chunks") -> Failure:
    """The failure for a call whose payload is too large. `fix`: for the usual limit."""
    way_out = f"; {fix}" if limit == MAX_INLINE_BYTES else ""
    return Failure(
        reason=Reason.PAYLOAD_TOO_LARGE,
        message=f"the payload has {size} bytes; at most {limit} bytes are allowed{way_out}",
        metadata={"actual": str(size), "limit": str(limit)},
    )


def result_too_large(size: int, fix: str = "name the feature chunks when you open a stream to get more") -> Failure:
    """The failure for a call whose result is larger than its caller can take."""
    return Failure(
        reason=Reason.PAYLOAD_TOO_LARGE,
        message=f"the result has {size} bytes; at most {MAX_INLINE_BYTES} bytes come in one piece: {fix}",
        executed=Executed.YES,
        metadata={"actual": str(size), "limit": str(MAX_INLINE_BYTES)},
    )


def ids_of(batch: router_service_pb2.CallBatch, most: int) -> Sequence[int] | Failure:
    """The call ids of a batch of `most` calls, parallel to its payloads."""
    if problem := block_problem(batch):
        return bad_field(*problem)
    count = count_of(batch)
    if count > most:
        return Failure(
            reason=Reason.WINDOW_EXCEEDED,
            message=f"payloads: a batch of {count} calls never fits the window of {most}: send fewer",
            metadata={"field": "payloads"},
        )
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


def payloads_of(batch: router_service_pb2.CallBatch, cut: Sequence[bytes] = ()) -> Sequence[CallPayload] | Failure:
    """The payloads of a batch with valid ids; those to come in chunks as `Announced`. `cut`: they, if not in it."""
    sizes, here = batch.chunked_sizes, cut or batch_payloads.payloads_of(batch)
    if not sizes:
        return here
    if len(sizes) != len(here):
        return bad_field("chunked_sizes", f"{len(sizes)} sizes for {len(here)} payloads; they must be as many")
    payloads: list[CallPayload] = list(here)
    for at, size in enumerate(sizes):
        if size < 0 or (size and payloads[at]):
            return bad_field("chunked_sizes", f"{size} for a payload that has {len(payloads[at])} bytes here")
        if size:
            payloads[at] = Announced(size)
    return payloads


def add_batch(
    frame: replica_service_pb2.RunFrame, outgoing: OutgoingBatch, payloads: FramePayloads, now: float
) -> Sequence[tuple[int, Payload]]:
    """Adds calls to a frame for a replica. Returns the run ids and payloads that must follow in chunks.

    `payloads`: of the frame.
    """
    batch = frame.batches.add(first_run_id=outgoing.first_run_id, endpoint=outgoing.endpoint, attempt=outgoing.attempt)
    batch.options.MergeFromString(outgoing.options.wire)
    if (columns := outgoing.columns) is not None:
        batch.ordering_keys.extend(columns.keys)
        batch.partitions.extend(columns.partitions)
        batch.owner_epochs.extend(columns.owner_epochs)
    elif outgoing.partition >= 0:
        batch.options.ordering_key = outgoing.options.ordering_key
        batch.partition = outgoing.partition
        batch.owner_epoch = outgoing.owner_epoch
    if (request := outgoing.options.request) is not None and not outgoing.is_shadow:
        put_identity(batch.request, request)
    batch.max_result_bytes = outgoing.max_result_bytes
    if outgoing.level:
        batch.values_ahead, batch.bytes_ahead = CREDITS[outgoing.level]
    is_block = type(outgoing.payloads) is PayloadBlock
    large = payloads.put(batch, outgoing.payloads, as_block=is_block)
    if (session := outgoing.session) is not None:
        ids = outgoing.call_ids
        batch.session_id = session.session_id
        batch.epoch = session.epoch
        batch.call_ids.extend(ids[:1] if isinstance(ids, range) else ids)
        batch.recover = outgoing.recovers
    if outgoing.origin is not None:
        batch.origin_stream_id, run_ids = outgoing.origin
        batch.origin_run_ids.extend(run_ids[:1] if isinstance(run_ids, range) else run_ids)
    if outgoing.is_shadow or outgoing.shard_keys or outgoing.affinity_keys or outgoing.traces:
        _add_origins(batch.origins, outgoing)
    if outgoing.arrived != inf:
        batch.waited_us = min(max(1, int((now - outgoing.arrived) * 1e6)), MAX_WAITED_US)
    if outgoing.deadline != inf:
        batch.time_left.FromNanoseconds(max(0, int((outgoing.deadline - now) * 1e9)))
    return [(outgoing.first_run_id + at, outgoing.payloads[at]) for at in large]


def _add_origins(origins: replica_service_pb2.RunOrigins, outgoing: OutgoingBatch) -> None:
    origins.shadow = outgoing.is_shadow
    origins.shard_keys.extend(outgoing.shard_keys)
    origins.affinity_keys.extend(outgoing.affinity_keys)
    if outgoing.traces:
        starts, traceparents, tracestates, requests = columns_of(outgoing.traces)
        origins.trace_starts.extend(starts)
        origins.traceparents.extend(traceparents)
        origins.tracestates.extend(tracestates)
        origins.http_requests.extend(requests)


def traces_of(batch: router_service_pb2.CallBatch, ids: Sequence[int]) -> dict[int, TraceContext] | Failure:
    """The trace contexts of the calls of a batch, by id. The ids are valid."""
    columns = TraceColumns(batch.trace_starts, batch.traceparents, batch.tracestates, batch.http_requests)
    problem = columns.problem(len(ids))
    return columns.by_id(ids) if problem is None else bad_field(*problem)


def results_problem(batches: Iterable[call_pb2.ResultBatch]) -> str:
    """The problem that makes the results of a frame impossible to assign to runs; empty if there is none."""
    calls = 0
    for batch in batches:
        if problem := block_problem(batch):
            return f"a batch of results has a bad {': '.join(problem)}"
        count, ids, sizes = count_of(batch), len(batch.call_ids), len(batch.chunked_sizes)
        if not (batch.first_call_id or ids == count) or sizes not in (0, count):
            return f"a batch of results has {ids} ids, {count} payloads and {sizes} sizes"
        calls += count
    return f"one frame has {calls} results; {MAX_ELEMENTS} are allowed" if calls > MAX_ELEMENTS else ""


def results_of(
    frame: call_pb2.ResultFrame, payloads_of: Callable[[call_pb2.ResultBatch], Sequence[Payload]]
) -> list[Results]:
    """Run ids, payloads and content type of each batch. `payloads_of` also knows payloads from chunks."""
    return [
        (ids_of_results(batch), payloads_of(batch), batch.content_type) for batch in frame.batches if not batch.partial
    ]


def values_of(
    frame: call_pb2.ResultFrame, payloads_of: Callable[[call_pb2.ResultBatch], Sequence[Payload]]
) -> list[Results]:
    """The same for values of calls that continue: a run id occurs once for each value."""
    return [(ids_of_results(batch), payloads_of(batch), batch.content_type) for batch in frame.batches if batch.partial]


def taken_of(wire: call_pb2.TakeItems, most: int) -> list[tuple[int, int]]:
    """How many requests handlers have taken, by run id; at most `most`, the calls that the replica has."""
    return list(islice(zip(wire.call_ids, wire.counts, strict=False), most))


def takes_to_wire(counts: Mapping[int, int]) -> call_pb2.TakeItems:
    """How many values of each run have been taken."""
    return call_pb2.TakeItems(call_ids=counts.keys(), counts=counts.values())


def failures_of(response: replica_service_pb2.ExecuteResponse) -> list[Failures]:
    """Run ids and failure of each group of calls that failed alike. A few bytes can name many ids: count first."""
    found: list[Failures] = [
        (ids_from_wire(errors.calls), from_wire(errors.failure)) for errors in response.results.errors
    ]
    for at, trailers in enumerate(response.trailers[: len(found)]):
        ids, failure = found[at]
        found[at] = ids, replace(failure, trailers=trailers)
    return found


def capacity_from_wire(wire: replica_service_pb2.Capacity) -> ReportedCapacity:
    """A replica's report."""
    return ReportedCapacity(
        max_ongoing=max(1, wire.max_ongoing),
        prefetch=wire.prefetch,
        others=wire.others,
        keyed_window=wire.keyed_window,
        draining=wire.draining,
    )


MAX_METHODS = 1024
"""Maximum number of methods of a replica whose service times are kept."""


def times_of(wire: replica_service_pb2.ServiceTimes) -> dict[str, MethodTime]:
    """The service times that a replica reported, by method."""
    return {
        each.method: MethodTime(max(0.0, each.service_time.ToNanoseconds() / 1e9), max(0, each.batch_size))
        for each in islice(wire.methods, MAX_METHODS)
    }


def evicted_of(wire: replica_service_pb2.HandlerState) -> Evicted:
    """The evicted blocks, as many as the bound allows."""
    return Evicted(tuple(islice(wire.evicted_blocks, MAX_EVICTED)), wire.all_evicted)


def handler_state_of(replica: RoutedReplica, wire: replica_service_pb2.HandlerState) -> HandlerStateReported:
    """What a handler reported, as much as the bounds allow, without invalid figures."""
    valid = ((name, it) for name, it in wire.figures.items() if 0 < len(name) <= MAX_FIGURE_CHARS and isfinite(it))
    figures = MappingProxyType(dict(islice(valid, MAX_FIGURES)))
    models = None if wire.same_models else frozenset(islice(wire.models, MAX_MODELS))
    max_models, load_s = min(max(0, wire.max_models), MAX_MODELS), max(0.0, wire.load_time.ToNanoseconds() / 1e9)
    return HandlerStateReported(replica, figures, models, evicted_of(wire), max_models, load_s)


_LARGEST_BATCH = 2**31 - 1


def tensors_of(wire: Iterable[replica_service_pb2.MethodTensors]) -> dict[str, MethodTensors]:
    """By method, as many as the bounds allow; invalid tensors are left out."""
    found: dict[str, MethodTensors] = {}
    left = MAX_DESCRIBED
    for each in islice(wire, MAX_METHODS):
        left -= len(each.inputs) + len(each.outputs)
        if left < 0:
            break
        found[each.method] = MethodTensors(
            inputs=_types_of(each.inputs),
            outputs=_types_of(each.outputs),
            yields=each.yields,
            batch_size=min(max(0, each.batch_size), _LARGEST_BATCH),
        )
    return found


def _types_of(wire: Iterable[replica_service_pb2.TensorType]) -> tuple[TensorType, ...]:
    return tuple(
        TensorType(name=each.name, datatype=each.datatype, shape=tuple(each.shape), optional=each.optional)
        for each in islice(wire, MAX_INPUTS)
        if each.datatype in DATATYPES and len(each.shape) <= MAX_DIMENSIONS
    )
