"""Call options as the wire has them -> what the replica reads of them. Equal ones are converted once."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from replica_service.core.call_options import MAX_CREDIT, HandlerCredit, ReplicaCallOptions
from slotmesh.call_options import wire as stated
from slotmesh.call_options.option import Reader
from slotmesh.codec import CONTENT_TYPES, OCTET_STREAM
from slotmesh.errors import Failure, Reason
from slotmesh.handlers import CALL
from slotmesh.spec.rules import show
from slotmesh.v1 import call_pb2
from slotmesh.wire.rpc_frames import RPC_TYPES

_KNOWN_TYPES = frozenset({*CONTENT_TYPES, *RPC_TYPES})
NO_OPTIONS = ReplicaCallOptions()


MAX_KNOWN_BYTES = 512
"""Larger options are converted each time: what is remembered must stay small, whatever clients send."""


def options_from_wire(raw: bytes) -> ReplicaCallOptions | Failure:
    """Equal options are one object, unless they are large."""
    return _known_options(raw) if len(raw) <= MAX_KNOWN_BYTES else _options(raw)


@lru_cache(maxsize=16_384)
def _known_options(raw: bytes) -> ReplicaCallOptions | Failure:
    return _options(raw)


def _options(raw: bytes) -> ReplicaCallOptions | Failure:
    wire = call_pb2.CallOptions.FromString(raw)
    if wire.content_type and wire.content_type not in _KNOWN_TYPES:
        known = ", ".join(CONTENT_TYPES)
        return bad_request("options.content_type", f"must be one of {known}, got {show(wire.content_type)!r}")
    said = stated.options_from_wire(wire, Reader.REPLICA)
    said.setdefault("content_type", OCTET_STREAM)
    if wire.method == CALL:
        said["method"] = ""
    return ReplicaCallOptions(**said)


def with_credit(options: ReplicaCallOptions, values: int, nbytes: int) -> ReplicaCallOptions:
    """The same with so much credit; 0 and less, or more than there is, mean all of it."""
    most = MAX_CREDIT
    credit = HandlerCredit(
        values if 0 < values < most.values else most.values, nbytes if 0 < nbytes < most.bytes else most.bytes
    )
    return options if credit == most else replace(options, credit=credit)


def bad_request(field: str, problem: str) -> Failure:
    """A mistake of the router, or of the client behind it."""
    return Failure(reason=Reason.BAD_REQUEST, message=f"{field}: {problem}", metadata={"field": field})
