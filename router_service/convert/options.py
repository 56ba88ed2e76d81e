"""The options of calls: checked once for each distinct value, and kept with what routing reads.

Invariants: what is wrong names its field; what is remembered stays small, whatever clients send.
Owner: pure functions of the router's edge.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache, partial
from math import inf

from google.protobuf import duration_pb2, timestamp_pb2

from router_service.core.calls import CallOptions
from slotmesh.codec import CONTENT_TYPES, OCTET_STREAM
from slotmesh.errors import Failure, Reason
from slotmesh.partitions import partition_of
from slotmesh.units import MAX_DURATION_S
from slotmesh.v1 import call_pb2

MAX_KEY_BYTES = 1024
"""Longest ordering key or shard key."""
MAX_KNOWN_OPTIONS_BYTES = 512
"""Larger options are converted each time: what is remembered must stay small, whatever clients send."""
MAX_METADATA_ENTRIES = 64
MAX_METADATA_BYTES = 8 * 1024
_LAST_SECOND = 253_402_300_799
"""The end of the year 9999, Unix seconds."""
_RESERVED_PREFIXES = ("slotmesh-", "grpc-")


def options_from_wire(wire: call_pb2.CallOptions) -> CallOptions | Failure:
    """The options of a batch, or why its calls fail."""
    raw = wire.SerializeToString()
    return _known_options(raw) if len(raw) <= MAX_KNOWN_OPTIONS_BYTES else _options(raw)


@lru_cache(maxsize=16_384)
def _known_options(raw: bytes) -> CallOptions | Failure:
    return _options(raw)


def options_by_key(wire: call_pb2.CallOptions) -> Callable[[str], CallOptions | Failure]:
    """The options of a batch with a column of ordering keys: those of each key, which stands in place of their own."""
    if wire.ordering_key:
        wire = call_pb2.CallOptions.FromString(wire.SerializeToString())
        wire.ClearField("ordering_key")
    raw = wire.SerializeToString()
    return partial(_known_with_key if len(raw) <= MAX_KNOWN_OPTIONS_BYTES else _with_key, raw)


@lru_cache(maxsize=65_536)
def _known_with_key(raw: bytes, key: str) -> CallOptions | Failure:
    return _with_key(raw, key)


def _with_key(raw: bytes, key: str) -> CallOptions | Failure:
    """The options with this ordering key. All that differ in the key alone share what replicas get."""
    options = _known_options(raw) if len(raw) <= MAX_KNOWN_OPTIONS_BYTES else _options(raw)
    if isinstance(options, Failure) or not key:
        return options
    if problem := _key_problem(key):
        return _bad("ordering_key", problem)
    return replace(options, ordering_key=key, partition=partition_of(key), shard_key="")


def _options(raw: bytes) -> CallOptions | Failure:
    wire = call_pb2.CallOptions.FromString(raw)
    if failure := _option_mistake(wire):
        return failure
    return CallOptions(
        method=wire.method,
        content_type=wire.content_type or OCTET_STREAM,
        ordering_key=wire.ordering_key,
        partition=partition_of(wire.ordering_key) if wire.ordering_key else -1,
        shard_key="" if wire.ordering_key else wire.shard_key,
        timeout_s=wire.timeout.ToNanoseconds() / 1e9 if wire.HasField("timeout") else inf,
        slo_s=wire.relative_slo.ToNanoseconds() / 1e9 if wire.HasField("relative_slo") else None,
        slo_at=wire.absolute_slo.ToNanoseconds() / 1e9 if wire.HasField("absolute_slo") else None,
        idempotent=wire.idempotent,
        no_reply=wire.no_reply,
        streaming=wire.streaming,
        stop_generation=wire.stop_generation,
        wire=_for_replicas(wire, raw),
    )


def _for_replicas(wire: call_pb2.CallOptions, raw: bytes) -> bytes:
    """The options without what only routing reads, so that calls which differ in that alone travel as one batch.

    Nor with the ordering key: batches have a field for it, one key for all calls or one for each.
    """
    if not (wire.ordering_key or wire.shard_key or wire.HasField("relative_slo") or wire.HasField("absolute_slo")):
        return raw
    stripped = call_pb2.CallOptions.FromString(raw)
    stripped.ClearField("ordering_key")
    stripped.ClearField("shard_key")
    stripped.ClearField("relative_slo")
    stripped.ClearField("absolute_slo")
    return stripped.SerializeToString()


def with_relative_slo(options: CallOptions, time_of_day: float) -> CallOptions:
    """The same options with an absolute SLO made relative to now, Unix seconds. One in the past is due at once."""
    if options.slo_at is None:
        return options
    return replace(options, slo_s=max(0.0, options.slo_at - time_of_day), slo_at=None)


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
    if failure := _slo_mistake(wire):
        return failure
    if wire.stop_generation < 0:
        return _bad("stop_generation", f"must not be negative, got {wire.stop_generation}")
    for name, key in (("ordering_key", wire.ordering_key), ("shard_key", wire.shard_key)):
        if problem := _key_problem(key):
            return _bad(name, problem)
    return _metadata_mistake(wire.metadata)


def _key_problem(key: str) -> str | None:
    size = len(key.encode())
    return f"at most {MAX_KEY_BYTES} bytes, got {size}" if size > MAX_KEY_BYTES else None


def _slo_mistake(wire: call_pb2.CallOptions) -> Failure | None:
    if wire.HasField("relative_slo") and (problem := _duration_problem(wire.relative_slo)):
        return _bad("relative_slo", problem)
    if wire.HasField("absolute_slo"):
        if wire.HasField("relative_slo"):
            return _bad("absolute_slo", "set this or relative_slo, not both")
        if problem := _timestamp_problem(wire.absolute_slo):
            return _bad("absolute_slo", problem)
    return None


def _timestamp_problem(wire: timestamp_pb2.Timestamp) -> str | None:
    """What is wrong with a time of day, which may hold far more than a Timestamp may be."""
    if not 0 <= wire.seconds <= _LAST_SECOND or not 0 <= wire.nanos < 10**9:
        return f"must be a time from 1970 to 9999, got {wire.seconds} s and {wire.nanos} ns since 1970"
    return None


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
