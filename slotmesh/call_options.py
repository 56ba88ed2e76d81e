"""What is wrong with the options of a call: looked at once, by whichever server a client has spoken to first.

Invariants: what is wrong names its field; all servers that clients reach find the same mistakes, in the same words.
Pure functions of messages; nothing is converted here.
"""

from __future__ import annotations

from collections.abc import Mapping

from google.protobuf import duration_pb2, timestamp_pb2

from slotmesh.codec import CONTENT_TYPES
from slotmesh.errors import Failure, Reason
from slotmesh.units import MAX_DURATION_S
from slotmesh.v1 import call_pb2

MAX_KEY_BYTES = 1024
"""Longest ordering key or shard key."""
MAX_METADATA_ENTRIES = 64
MAX_METADATA_BYTES = 8 * 1024
_LAST_SECOND = 253_402_300_799
"""The end of the year 9999, Unix seconds."""
_RESERVED_PREFIXES = ("slotmesh-", "grpc-")


def option_mistake(wire: call_pb2.CallOptions) -> Failure | None:
    """Why a call with these options fails before anything is done, if it does."""
    if wire.method.startswith("_") and wire.method != "__call__":
        return Failure(
            reason=Reason.METHOD_NOT_FOUND,
            message=f"options.method: {wire.method!r} is private; only public methods of a handler can be called",
            metadata={"method": wire.method},
        )
    if wire.content_type and wire.content_type not in CONTENT_TYPES:
        return bad_option("content_type", f"{wire.content_type!r} is not one of {', '.join(CONTENT_TYPES)}")
    if wire.HasField("timeout") and (problem := _duration_problem(wire.timeout)):
        return bad_option("timeout", problem)
    if failure := _slo_mistake(wire):
        return failure
    if wire.stop_generation < 0:
        return bad_option("stop_generation", f"must not be negative, got {wire.stop_generation}")
    for name, key in (("ordering_key", wire.ordering_key), ("shard_key", wire.shard_key)):
        if problem := key_problem(key):
            return bad_option(name, problem)
    return _metadata_mistake(wire.metadata)


def key_problem(key: str) -> str | None:
    """What is wrong with an ordering key or a shard key."""
    size = len(key.encode())
    return f"at most {MAX_KEY_BYTES} bytes, got {size}" if size > MAX_KEY_BYTES else None


def bad_option(name: str, what: str) -> Failure:
    """The failure of calls one of whose options has a value it must not have."""
    return Failure(reason=Reason.BAD_REQUEST, message=f"options.{name}: {what}", metadata={"field": f"options.{name}"})


def _slo_mistake(wire: call_pb2.CallOptions) -> Failure | None:
    if wire.HasField("relative_slo") and (problem := _duration_problem(wire.relative_slo)):
        return bad_option("relative_slo", problem)
    if wire.HasField("absolute_slo"):
        if wire.HasField("relative_slo"):
            return bad_option("absolute_slo", "set this or relative_slo, not both")
        if problem := _timestamp_problem(wire.absolute_slo):
            return bad_option("absolute_slo", problem)
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
        return bad_option("metadata", f"at most {MAX_METADATA_ENTRIES} entries, got {len(metadata)}")
    size = sum(len(key) + len(value) for key, value in metadata.items())
    if size > MAX_METADATA_BYTES:
        return bad_option("metadata", f"at most {MAX_METADATA_BYTES} bytes in all, got {size}")
    for key in metadata:
        if key.startswith(_RESERVED_PREFIXES) or key == "authorization" or key != key.lower() or not key:
            return bad_option("metadata", f"key {key!r} is reserved, empty or not lower case")
    return None
