"""Frames <-> domain values, once a frame or batch, never once a call.

Invariants: protobuf messages do not pass this edge inwards; equal options are converted once and then looked up.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import chain
from math import inf
from typing import TYPE_CHECKING

import msgspec
from google.protobuf import duration_pb2, json_format, struct_pb2

from router_service.core.calls import CallOptions
from router_service.core.replicas import Capacity
from router_service.core.table import BackendRoute, EndpointRoute, ReplicaKey, ReplicaRoute, RoutingTable
from slotmesh.codec import CONTENT_TYPES, OCTET_STREAM
from slotmesh.codec.json_values import value_from_wire
from slotmesh.errors import Failure, Reason
from slotmesh.partitions import partition_of
from slotmesh.status import from_wire
from slotmesh.units import MAX_DURATION_S
from slotmesh.v1 import call_pb2, membership_service_pb2, replica_service_pb2

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from router_service.core.calls import Sent
    from slotmesh.v1 import router_service_pb2

MAX_PAYLOAD_BYTES = 4 * 1024 * 1024
"""Largest payload that travels inline."""
MAX_KEY_BYTES = 1024
"""Longest ordering key or shard key."""
MAX_KNOWN_OPTIONS_BYTES = 512
"""Larger options are converted each time: what is remembered must stay small, whatever clients send."""
MAX_METADATA_ENTRIES = 64
MAX_METADATA_BYTES = 8 * 1024
_RESERVED_PREFIXES = ("slotmesh-", "grpc-")


# -- calls in ----------------------------------------------------------------------------------------------------


def options_from_wire(wire: call_pb2.CallOptions) -> CallOptions | Failure:
    """The options of a batch, or why its calls fail."""
    raw = wire.SerializeToString()
    return _known_options(raw) if len(raw) <= MAX_KNOWN_OPTIONS_BYTES else _options(raw)


@lru_cache(maxsize=16_384)
def _known_options(raw: bytes) -> CallOptions | Failure:
    return _options(raw)


def _options(raw: bytes) -> CallOptions | Failure:
    wire = call_pb2.CallOptions.FromString(raw)
    if failure := _option_mistake(wire):
        return failure
    return CallOptions(
        method=wire.method,
        content_type=wire.content_type or OCTET_STREAM,
        ordering_key=wire.ordering_key,
        partition=partition_of(wire.ordering_key) if wire.ordering_key else -1,
        timeout_s=wire.timeout.ToNanoseconds() / 1e9 if wire.HasField("timeout") else inf,
        idempotent=wire.idempotent,
        wire=raw,
    )


def _option_mistake(wire: call_pb2.CallOptions) -> Failure | None:
    if wire.method.startswith("_") and wire.method != "__call__":
        return Failure(
            reason=Reason.METHOD_NOT_FOUND,
            message=f"options.method: {wire.method!r} is private; only public methods of a handler can be called",
            metadata={"method": wire.method},
        )
    if wire.content_type and wire.content_type not in CONTENT_TYPES:
        return _bad("content_type", f"{wire.content_type!r} is not one of {', '.join(CONTENT_TYPES)}")
    if wire.HasField("timeout") and (problem := _duration_problem(wire.timeout)):
        return _bad("timeout", problem)
    for name in ("relative_slo", "absolute_slo"):
        if wire.HasField(name):
            return _not_yet(name)
    if wire.no_reply:
        return _not_yet("no_reply")
    for name, key in (("ordering_key", wire.ordering_key), ("shard_key", wire.shard_key)):
        if len(key) > MAX_KEY_BYTES or len(key.encode()) > MAX_KEY_BYTES:
            return _bad(name, f"at most {MAX_KEY_BYTES} bytes, got {len(key.encode())}")
    if wire.shard_key and not wire.ordering_key:
        return _not_yet("shard_key")
    return _metadata_mistake(wire.metadata)


def _duration_problem(wire: duration_pb2.Duration) -> str | None:
    """What is wrong with a length of time. Its fields hold far more than a Duration may be, and can be written back."""
    if wire.seconds < 0 or wire.nanos < 0:
        return f"must not be negative, got {wire.seconds} s and {wire.nanos} ns"
    if wire.seconds > MAX_DURATION_S or wire.nanos >= 10**9:
        return f"must be at most {MAX_DURATION_S} s and 999999999 ns, got {wire.seconds} s and {wire.nanos} ns"
    return None


def _metadata_mistake(metadata: Mapping[str, str]) -> Failure | None:
    if len(metadata) > MAX_METADATA_ENTRIES:
        return _bad("metadata", f"at most {MAX_METADATA_ENTRIES} entries, got {len(metadata)}")
    size = sum(len(key) + len(value) for key, value in metadata.items())
    if size > MAX_METADATA_BYTES:
        return _bad("metadata", f"at most {MAX_METADATA_BYTES} bytes in all, got {size}")
    for key in metadata:
        if key.startswith(_RESERVED_PREFIXES) or key == "authorization" or key != key.lower() or not key:
            return _bad("metadata", f"key {key!r} is reserved, empty or not lower case")
    return None


def _bad(name: str, what: str) -> Failure:
    return Failure(reason=Reason.BAD_REQUEST, message=f"options.{name}: {what}", metadata={"field": f"options.{name}"})


def _not_yet(name: str) -> Failure:
    return Failure(
        reason=Reason.NOT_IMPLEMENTED,
        message=f"options.{name}: this router does not have it; leave it unset",
        metadata={"field": f"options.{name}"},
    )


def too_large(size: int) -> Failure:
    """What the caller of an oversize payload hears."""
    return Failure(
        reason=Reason.PAYLOAD_TOO_LARGE,
        message=f"the payload has {size} bytes; at most {MAX_PAYLOAD_BYTES} bytes are allowed",
        metadata={"actual": str(size), "limit": str(MAX_PAYLOAD_BYTES)},
    )


def ids_of(batch: router_service_pb2.CallBatch) -> Sequence[int] | Failure:
    """The call ids of a batch, parallel to its payloads."""
    if batch.resend:
        return Failure(
            reason=Reason.NOT_IMPLEMENTED,
            message="resend: this router does not resume sessions; send the calls as new ones",
            metadata={"field": "resend"},
        )
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


# -- runs out ----------------------------------------------------------------------------------------------------


def add_run(frame: replica_service_pb2.RunFrame, sent: Sent, now: float) -> int:
    """Adds the slice to a frame for its replica; returns its payload bytes."""
    run = sent.run
    batch = frame.batches.add(first_run_id=sent.first, endpoint=run.endpoint, attempt=run.attempt)
    batch.options.MergeFromString(run.options.wire)
    payloads = run.payloads if sent.count == len(run.payloads) else run.payloads[sent.lo : sent.lo + sent.count]
    batch.payloads.extend(payloads)
    if run.options.partition >= 0:
        batch.partition = run.options.partition
        batch.owner_epoch = sent.owner_epoch
    if run.deadline != inf:
        batch.time_left.FromNanoseconds(max(0, int((run.deadline - now) * 1e9)))
    return sum(map(len, payloads))


# -- results in --------------------------------------------------------------------------------------------------


def results_of(frame: call_pb2.ResultFrame) -> list[tuple[list[int], list[bytes], str]]:
    """Run ids, payloads and content type of each batch."""
    return [(list(batch.call_ids), list(batch.payloads), batch.content_type) for batch in frame.batches]


def failures_of(frame: call_pb2.ResultFrame) -> list[tuple[list[int], Failure]]:
    """Run ids and failure of each group of calls that failed alike."""
    return [(list(errors.call_ids), from_wire(errors.failure)) for errors in frame.errors]


def run_ids_of(ranges: Iterable[call_pb2.IdRange]) -> list[int]:
    """The ids that ranges stand for."""
    return list(chain.from_iterable(range(each.first, each.last + 1) for each in ranges))


def capacity_from_wire(wire: call_pb2.Capacity) -> Capacity:
    """A replica's report."""
    return Capacity(
        max_ongoing=max(1, wire.max_ongoing),
        prefetch=wire.prefetch,
        others=wire.others,
        keyed_window=wire.keyed_window,
        draining=wire.draining,
    )


# -- the table ---------------------------------------------------------------------------------------------------


def table_from_wire(wire: membership_service_pb2.RoutingTable) -> RoutingTable:
    """The controller's table."""
    return RoutingTable(
        generation=wire.generation,
        revision=wire.revision,
        endpoints={each.name: _endpoint(each) for each in wire.endpoints},
        backends={each.name: _backend(each) for each in wire.backends},
        router_addresses=tuple(wire.router_addresses),
    )


def _endpoint(wire: membership_service_pb2.EndpointRoute) -> EndpointRoute:
    keys: list[ReplicaKey] = [(owner.replica_id, owner.incarnation) for owner in wire.owners]
    return EndpointRoute(
        name=wire.name,
        weights=dict(wire.traffic.weights) if wire.HasField("traffic") else None,
        owners=[
            (keys[owner] if owner >= 0 else None, epoch)
            for owner, epoch in zip(wire.partition_owners, wire.owner_epochs, strict=True)
        ],
    )


def _backend(wire: membership_service_pb2.BackendRoute) -> BackendRoute:
    defaults = BackendRoute(name=wire.name)
    return BackendRoute(
        name=wire.name,
        replicas=[
            ReplicaRoute(
                key=(each.replica_id, each.incarnation),
                address=each.address,
                max_ongoing=max(1, each.max_ongoing),
                draining=each.draining,
            )
            for each in wire.replicas
        ],
        max_queued_calls=wire.max_queued_calls or defaults.max_queued_calls,
        max_queued_bytes=wire.max_queued_bytes or defaults.max_queued_bytes,
        max_queue_time_s=(
            wire.max_queue_time.ToNanoseconds() / 1e9 if wire.HasField("max_queue_time") else defaults.max_queue_time_s
        ),
    )


# -- JSON --------------------------------------------------------------------------------------------------------


def json_arguments(value: struct_pb2.Value) -> bytes | Failure:
    """The payload of a CallJson: an array of positional arguments or a map of named ones."""
    kind = value.WhichOneof("kind")
    if kind is None:
        return b"[]"
    if kind not in ("list_value", "struct_value"):
        return Failure(
            reason=Reason.BAD_ARGUMENTS,
            message=f"arguments: expected a list of positional arguments or a struct of named ones, got a {kind}",
            metadata={"field": "arguments"},
        )
    return msgspec.json.encode(value_from_wire(value))


def json_result(payload: bytes) -> struct_pb2.Value:
    """The result of a CallJson."""
    return json_format.Parse(payload, struct_pb2.Value())
