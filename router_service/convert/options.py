"""The options of calls, from frames or the metadata of users' own rpcs: checked once for each distinct value.

Invariants: errors name the field or metadata key. Unknown metadata keys that begin with `slotmesh-` are rejected, so
that no typo is ignored. The caches of checked options stay small, whatever clients send.
Owner: pure functions of the router's edge.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from router_service.core.calls import RouterCallOptions
from slotmesh.calls.call_options import GIVES_VALUES, NO_METADATA, CallRpc, Reader
from slotmesh.calls.key_hash import partition_of
from slotmesh.calls.request_ids import NO_EFFECT, WITHOUT_EFFECT, CallIdentity
from slotmesh.calls.result_envelopes import RPC, RPC_REQUESTS, BadFrames, MetadataPairs, metadata_from_bytes
from slotmesh.codec import OCTET_STREAM
from slotmesh.convert import call_options as stated
from slotmesh.convert.call_options import (
    bad_option,
    mark_problem,
    options_failure,
    refused_option,
)
from slotmesh.errors import Failure, Reason, bad_field, bad_metadata
from slotmesh.internal.v1 import replica_service_pb2
from slotmesh.spec.descriptor_sets import OwnRpc
from slotmesh.spec.option_rules import MAX_METADATA_ENTRIES, key_problem
from slotmesh.spec.rules import request_id_problem
from slotmesh.spec.tenants import tenant_problem
from slotmesh.streams.limits import MAX_OPTIONS_BYTES
from slotmesh.units import parse_duration
from slotmesh.v1 import call_pb2

MAX_KNOWN_OPTIONS_BYTES = 512
"""Larger options are converted each time, so that the cache stays small, whatever clients send."""
MAX_KNOWN_KEYED_BYTES = 256
"""The same for options with a key of a column, and for such a key alone, in characters: there are many."""
EACH_VALUE: Final = call_pb2.CallOptions(stream=call_pb2.StreamOptions(each_value=True))
"""Added to the options of calls whose caller takes values one by one."""
_OF_KEYLESS: Final[dict[str, Any]] = {"shard_key": "", "affinity_key": "", "prefix_blocks": ()}
"""Options without effect on calls with an ordering key."""
MAX_KNOWN_PARTITIONS = 65_536
"""Maximum number of ordering keys with a cached partition."""


def options_from_wire(wire: call_pb2.CallOptions) -> RouterCallOptions | Failure:
    """The options of a batch, or the failure of its calls."""
    return _too_many_entries(wire) or _shared(wire.SerializeToString())


def options_of_rpc(wire: call_pb2.CallOptions, rpc: CallRpc, http_mark: bytes = b"") -> RouterCallOptions | Failure:
    """The options of a call by an rpc of its own, or its failure. A call of a streaming rpc gives each value.

    `http_mark`: of the HTTP front that the call came by.
    """
    if failure := refused_option(wire, rpc):
        return failure
    if rpc in GIVES_VALUES:
        wire.MergeFrom(EACH_VALUE)
    if http_mark:
        if problem := mark_problem(http_mark):
            return bad_field("http_mark", problem)
        wire.stream.http = http_mark
    return options_from_wire(wire)


def with_request(options: RouterCallOptions, request: CallIdentity) -> RouterCallOptions | Failure:
    """The options of a call with a request id, which decides where the call goes if there is no ordering key."""
    if options.partition >= 0:
        return replace(options, request=request)
    for name in WITHOUT_EFFECT:
        if getattr(options, name):
            return bad_option(name, NO_EFFECT)
    return replace(options, request=request, partition=partition_of(request.request_id))


def put_identity(wire: replica_service_pb2.RequestIdentity, request: CallIdentity) -> None:
    """Sets the identity of a call with a request id."""
    wire.id, wire.digest, wire.caller = request.request_id, request.digest, request.caller


class OptionsByKey:
    """The options of a batch with a column of ordering keys, for each key, which replaces the key of the options."""

    def __init__(self, wire: call_pb2.CallOptions) -> None:
        if failure := _too_many_entries(wire):
            self.shared: RouterCallOptions | Failure = failure
            self.of: Callable[[str], RouterCallOptions | Failure] = partial(_with_key, failure)
            return
        if wire.ordering_key:
            wire = call_pb2.CallOptions.FromString(wire.SerializeToString())
            wire.ClearField("ordering_key")
        raw = wire.SerializeToString()
        self.shared = _shared(raw)
        """The options that all calls share; a failure if they are invalid."""
        is_small = len(raw) <= MAX_KNOWN_KEYED_BYTES
        self.of = partial(_keyed, raw) if is_small else partial(_with_key, self.shared)
        """The options for one key; a failure if the key or the shared options are invalid. Empty: no key."""


def partitions_of(keys: Sequence[str]) -> list[int]:
    """The partition of each ordering key; empty if one of them is empty or invalid."""
    numbers = list(map(_KNOWN_PARTITIONS.__getitem__, keys))
    return numbers if min(numbers) >= 0 else []


class _KnownPartitions(dict[str, int]):
    """Partitions of small ordering keys; -1 for empty or invalid keys. Cleared when full."""

    def __missing__(self, key: str) -> int:
        number = partition_of(key) if key and key_problem(key) is None else -1
        if len(key) <= MAX_KNOWN_KEYED_BYTES:
            if len(self) >= MAX_KNOWN_PARTITIONS:
                self.clear()
            self[key] = number
        return number


_KNOWN_PARTITIONS = _KnownPartitions()


def _keyed(raw: bytes, key: str) -> RouterCallOptions | Failure:
    is_small = len(raw) + len(key) <= MAX_KNOWN_KEYED_BYTES
    return _known_with_key(raw, key) if is_small else _with_key(_shared(raw), key)


@lru_cache(maxsize=32_768)
def _known_with_key(raw: bytes, key: str) -> RouterCallOptions | Failure:
    return _with_key(_shared(raw), key)


def _with_key(options: RouterCallOptions | Failure, key: str) -> RouterCallOptions | Failure:
    """The options with this ordering key. Options that differ only in the key share the bytes sent to replicas."""
    if isinstance(options, Failure) or not key:
        return options
    if problem := key_problem(key):
        return bad_option("ordering_key", problem)
    return replace(options, ordering_key=key, partition=partition_of(key), **_OF_KEYLESS)


def _too_many_entries(wire: call_pb2.CallOptions) -> Failure | None:
    """Checked before the options are serialized, which takes time for each entry."""
    if len(wire.metadata) <= MAX_METADATA_ENTRIES:
        return None
    return bad_option("metadata", f"at most {MAX_METADATA_ENTRIES} entries, got {len(wire.metadata)}")


def _shared(raw: bytes) -> RouterCallOptions | Failure:
    """The options that all calls of a column share."""
    if len(raw) > MAX_OPTIONS_BYTES:
        problem = f"options: at most {MAX_OPTIONS_BYTES} bytes in all, got {len(raw)}"
        return Failure(reason=Reason.BAD_REQUEST, message=problem, metadata={"field": "options"})
    return _known_options(raw) if len(raw) <= MAX_KNOWN_OPTIONS_BYTES else _options(raw)


@lru_cache(maxsize=16_384)
def _known_options(raw: bytes) -> RouterCallOptions | Failure:
    return _options(raw)


def _options(raw: bytes) -> RouterCallOptions | Failure:
    wire = call_pb2.CallOptions.FromString(raw)
    if failure := options_failure(wire):
        return failure
    fields = stated.options_from_wire(wire, Reader.ROUTER)
    fields.setdefault("content_type", OCTET_STREAM)
    if wire.ordering_key:
        fields |= _OF_KEYLESS
        fields["partition"] = partition_of(wire.ordering_key)
    return RouterCallOptions(**fields, wire=stated.for_replicas(wire, raw))


def with_relative_slo(options: RouterCallOptions, time_of_day: float) -> RouterCallOptions:
    """The same options with an absolute SLO made relative to now, Unix seconds. One in the past is due immediately."""
    if options.slo_at is None:
        return options
    return replace(options, slo_s=max(0.0, options.slo_at.timestamp() - time_of_day), slo_at=None)


PREFIX: Final = "slotmesh-"
ORDERING_KEY: Final = "slotmesh-ordering-key"
SHARD_KEY: Final = "slotmesh-shard-key"
AFFINITY_KEY: Final = "slotmesh-affinity-key"
MODEL_ID: Final = "slotmesh-model-id"
TENANT: Final = "slotmesh-tenant"
SLO: Final = "slotmesh-slo"
ENDPOINT: Final = "slotmesh-endpoint"
REQUEST_ID: Final = "slotmesh-request-id"
_KNOWN: Final = (ORDERING_KEY, SHARD_KEY, AFFINITY_KEY, MODEL_ID, TENANT, SLO, REQUEST_ID, ENDPOINT)


_PROBLEM_OF: Final = {
    ORDERING_KEY: key_problem,
    SHARD_KEY: key_problem,
    AFFINITY_KEY: key_problem,
    MODEL_ID: key_problem,
    TENANT: tenant_problem,
}


class ShownMetadata:
    """The allow-list of metadata that balancers of users' own get to see. Read once for each distinct value."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = frozenset(names)
        self._known = lru_cache(maxsize=4096)(self._read)

    def __call__(self, wire: bytes) -> Mapping[str, str]:
        """What is shown of the options for replicas, serialized."""
        if not self._names or not wire:
            return NO_METADATA
        return self._known(wire) if len(wire) <= MAX_KNOWN_OPTIONS_BYTES else self._read(wire)

    def _read(self, wire: bytes) -> Mapping[str, str]:
        stated = call_pb2.CallOptions.FromString(wire).metadata
        return MappingProxyType({name: stated[name] for name in self._names if name in stated})


class RpcMetadata(NamedTuple):
    """The endpoint and the options that the metadata of one rpc states."""

    endpoint: str
    """Empty: the one that has the service."""
    options: call_pb2.CallOptions | None
    """None: the metadata states none."""
    request_id: str = ""
    """Empty: nothing identifies the call."""


def stated_options(metadata: Iterable[tuple[str, str | bytes]]) -> RpcMetadata | Failure:
    """The stated options, or the failure for invalid metadata."""
    found: dict[str, str] = {}
    for key, value in metadata:
        if not key.startswith(PREFIX):
            continue
        if key not in _KNOWN:
            return bad_metadata(key[:80], f"there is no such option: there are {', '.join(_KNOWN)}")
        if key in found:
            return bad_metadata(key, "is given twice")
        if not isinstance(value, str):
            return bad_metadata(key, "must be text")
        found[key] = value
    endpoint, request_id = found.pop(ENDPOINT, ""), found.pop(REQUEST_ID, None)
    if request_id is not None and (failure := _request_id_failure(request_id, found)):
        return failure
    named = RpcMetadata(endpoint, None, request_id or "")
    if not found:
        return named
    wire = call_pb2.CallOptions(
        ordering_key=found.get(ORDERING_KEY, ""),
        shard_key=found.get(SHARD_KEY, ""),
        affinity_key=found.get(AFFINITY_KEY, ""),
        model_id=found.get(MODEL_ID, ""),
        tenant=found.get(TENANT, ""),
    )
    for key, problem_of in _PROBLEM_OF.items():
        if problem := problem_of(found.get(key, "")):
            return bad_metadata(key, problem)
    if SLO in found:
        try:
            slo = parse_duration(found[SLO])
        except ValueError as error:
            return bad_metadata(SLO, str(error))
        wire.relative_slo.FromTimedelta(slo)
    return named._replace(options=wire)


def _request_id_failure(request_id: str, found: Mapping[str, str]) -> Failure | None:
    if problem := request_id_problem(request_id):
        return bad_metadata(REQUEST_ID, problem)
    for key in (SHARD_KEY, AFFINITY_KEY) if not found.get(ORDERING_KEY) else ():
        if found.get(key):
            return bad_metadata(key, f"has no effect beside {REQUEST_ID}: leave one of them out")
    return None


def own_rpc_options(path: str, rpc: OwnRpc, options: call_pb2.CallOptions | None) -> RouterCallOptions | Failure:
    """The options of a call of this rpc."""
    raw = b"" if options is None else options.SerializeToString()
    return (
        _known_own_rpc_options(path, rpc, raw)
        if len(raw) <= MAX_KNOWN_OPTIONS_BYTES
        else _new_own_rpc_options(path, rpc, raw)
    )


def metadata_of(raw: bytes) -> MetadataPairs:
    """Metadata that a handler has set; empty if the replica sent invalid metadata."""
    try:
        return metadata_from_bytes(raw) if raw else ()
    except BadFrames:
        return ()


@lru_cache(maxsize=4096)
def _known_own_rpc_options(path: str, rpc: OwnRpc, raw: bytes) -> RouterCallOptions | Failure:
    return _new_own_rpc_options(path, rpc, raw)


def _new_own_rpc_options(path: str, rpc: OwnRpc, raw: bytes) -> RouterCallOptions | Failure:
    wire = call_pb2.CallOptions.FromString(raw)
    if failure := options_failure(wire):
        return failure
    wire.method = path
    if rpc.gives_several:
        wire.MergeFrom(EACH_VALUE)
    wire.content_type = RPC_REQUESTS if rpc.takes_several else RPC
    known = stated.options_from_wire(wire, Reader.ROUTER)
    if wire.ordering_key:
        known |= _OF_KEYLESS
        known["partition"] = partition_of(wire.ordering_key)
    sent = stated.for_replicas(wire, wire.SerializeToString())
    return RouterCallOptions(**known, takes_requests=rpc.takes_several, wire=sent)
