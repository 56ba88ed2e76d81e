"""What an rpc of a user's own proto says of its call, by metadata, as options of calls.

Invariants: what is wrong names the key; metadata that begins with `slotmesh-` and is not known is refused, so that no
mistake is silent. What is remembered stays small, whatever clients send.
Owner: pure functions of the router's edge.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Final, NamedTuple

from router_service.convert.options import MAX_KNOWN_OPTIONS_BYTES
from router_service.core.calls import RouterCallOptions
from slotmesh.call_options import wire as stated
from slotmesh.call_options.option import Reader
from slotmesh.call_options.rules import key_problem, option_mistake
from slotmesh.errors import Failure, bad_field
from slotmesh.spec.descriptor_sets import OwnRpc
from slotmesh.tenant_names import tenant_problem
from slotmesh.units import parse_duration
from slotmesh.v1 import call_pb2
from slotmesh.wire.partitions import partition_of
from slotmesh.wire.rpc_frames import RPC, RPC_REQUESTS, BadFrames, MetadataPairs, metadata_from_bytes

PREFIX: Final = "slotmesh-"
ORDERING_KEY: Final = "slotmesh-ordering-key"
SHARD_KEY: Final = "slotmesh-shard-key"
TENANT: Final = "slotmesh-tenant"
SLO: Final = "slotmesh-slo"
ENDPOINT: Final = "slotmesh-endpoint"
_KNOWN: Final = (ORDERING_KEY, SHARD_KEY, TENANT, SLO, ENDPOINT)


class Said(NamedTuple):
    """What the metadata of one rpc says."""

    endpoint: str
    """Empty: the one that has the service."""
    options: call_pb2.CallOptions | None
    """None: nothing."""


NOTHING: Final = Said("", None)


def said_by(metadata: Iterable[tuple[str, str | bytes]]) -> Said | Failure:
    """What the metadata says, or what is wrong with it."""
    found: dict[str, str] = {}
    for key, value in metadata:
        if not key.startswith(PREFIX):
            continue
        if key not in _KNOWN:
            return bad_field(key[:80], f"there is no such option: there are {', '.join(_KNOWN)}")
        if key in found:
            return bad_field(key, "is given twice")
        if not isinstance(value, str):
            return bad_field(key, "must be text")
        found[key] = value
    if not found:
        return NOTHING
    endpoint = found.pop(ENDPOINT, "")
    if not found:
        return Said(endpoint, None)
    wire = call_pb2.CallOptions(
        ordering_key=found.get(ORDERING_KEY, ""), shard_key=found.get(SHARD_KEY, ""), tenant=found.get(TENANT, "")
    )
    for key, problem_of in ((ORDERING_KEY, key_problem), (SHARD_KEY, key_problem), (TENANT, tenant_problem)):
        if problem := problem_of(found.get(key, "")):
            return bad_field(key, problem)
    if SLO in found:
        try:
            slo = parse_duration(found[SLO])
        except ValueError as error:
            return bad_field(SLO, str(error))
        wire.relative_slo.FromTimedelta(slo)
    return Said(endpoint, wire)


def own_rpc_options(path: str, rpc: OwnRpc, said: call_pb2.CallOptions | None) -> RouterCallOptions | Failure:
    """The options of a call of this rpc."""
    raw = b"" if said is None else said.SerializeToString()
    return _known_options(path, rpc, raw) if len(raw) <= MAX_KNOWN_OPTIONS_BYTES else _options(path, rpc, raw)


def metadata_of(raw: bytes) -> MetadataPairs:
    """Metadata that a handler has set; none where a replica has sent what is none."""
    try:
        return metadata_from_bytes(raw) if raw else ()
    except BadFrames:
        return ()


@lru_cache(maxsize=4096)
def _known_options(path: str, rpc: OwnRpc, raw: bytes) -> RouterCallOptions | Failure:
    return _options(path, rpc, raw)


def _options(path: str, rpc: OwnRpc, raw: bytes) -> RouterCallOptions | Failure:
    wire = call_pb2.CallOptions.FromString(raw)
    if failure := option_mistake(wire):
        return failure
    wire.method, wire.streaming = path, rpc.gives_several
    wire.content_type = RPC_REQUESTS if rpc.takes_several else RPC
    known = stated.options_from_wire(wire, Reader.ROUTER)
    if wire.ordering_key:
        known["shard_key"] = ""
        known["partition"] = partition_of(wire.ordering_key)
    sent = stated.for_replicas(wire, wire.SerializeToString())
    return RouterCallOptions(**known, takes_requests=rpc.takes_several, wire=sent)
