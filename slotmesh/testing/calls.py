"""Sets `slotmesh.context()` and `slotmesh.mesh()` for handlers that a test calls without a replica."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import inf
from types import MappingProxyType
from typing import Any, TypedDict, Unpack

from slotmesh.calls.key_hash import partition_of
from slotmesh.client.handler_mesh import current_source
from slotmesh.client.mesh import Mesh
from slotmesh.client.sync.mesh import SyncMesh
from slotmesh.handlers.context import (
    BatchPlace,
    CallContext,
    CallPlace,
    HttpContext,
    Place,
    arrived_at_of,
    current_place,
    deadline_of,
)
from slotmesh.handlers.replica_context import OwnReplica, ReplicaContext, current_replica
from slotmesh.handlers.reporting import HandlerState, current_state


class ContextFields(TypedDict, total=False):
    """The fields of a call's context, documented at `slotmesh.CallContext`."""

    call_id: str
    endpoint: str
    method: str
    metadata: Mapping[str, str]
    timeout: float | None
    """Seconds from now until the deadline; None: no deadline."""
    ordering_key: str
    partition: int | None
    """Default: the partition of `ordering_key`."""
    owner_epoch: int | None
    """Default: 1 with an `ordering_key`."""
    replica_id: str
    backend: str
    version: str
    rank: int | None
    num_replicas: int | None
    devices: tuple[str, ...]
    session_id: str
    attempt: int
    idempotency_key: str
    own_request_id: str
    """The call's option `request_id`, which `request_id` returns too, unless there is `http`."""
    shard_key: str
    affinity_key: str
    model_id: str
    is_shadow: bool
    traceparent: str
    tracestate: str
    http: HttpContext | None
    """`slotmesh.HttpContext(method, path, …)`; None: not an HTTP call."""
    age: float | None
    """Seconds since the call arrived at the router; None: unknown."""


def make_context(**fields: Unpack[ContextFields]) -> CallContext:
    """A call's context, for tests. Defaults: a first, plain call of the endpoint `test`."""
    given: dict[str, Any] = {"call_id": "1", "endpoint": "test", "idempotency_key": "test-1", **fields}
    timeout = given.pop("timeout", None)
    deadline, ends_at = deadline_of(inf if timeout is None else timeout)
    arrived_at = arrived_at_of(given.pop("age", None))
    metadata = MappingProxyType(dict(given.pop("metadata", {})))
    if key := given.get("ordering_key"):
        given = {"partition": partition_of(key), "owner_epoch": 1, **given}
    return CallContext(metadata=metadata, deadline=deadline, ends_at=ends_at, arrived_at=arrived_at, **given)


@contextmanager
def call_context(**fields: Unpack[ContextFields]) -> Iterator[CallContext]:
    """Within the block `slotmesh.context()` is `make_context(**fields)`, here and in tasks that begin here."""
    context = make_context(**fields)
    with _at(CallPlace(context)):
        yield context


@contextmanager
def batch_contexts(*contexts: CallContext) -> Iterator[None]:
    """Within the block `slotmesh.contexts()` returns these, one for each item of a batch method that the test calls."""
    with _at(BatchPlace(contexts)):
        yield


@contextmanager
def _at(place: Place) -> Iterator[None]:
    token = current_place.set(place)
    try:
        yield
    finally:
        current_place.reset(token)


@contextmanager
def reports() -> Iterator[HandlerState]:
    """Within the block `slotmesh.report` of handlers that the test runs itself is kept: `reported.figures` has it."""
    reported = HandlerState()
    token = current_state.set(reported)
    try:
        yield reported
    finally:
        current_state.reset(token)


@contextmanager
def own_mesh(mesh: Mesh | None = None, sync: SyncMesh | None = None) -> Iterator[None]:
    """Within the block, handlers that the test runs itself get these as `slotmesh.mesh()` and `mesh_sync()`.

    So do handlers of `slotmesh.testing.handler`; those of `slotmesh.testing.mesh` always have their own mesh.

    Args:
        mesh: the client of another mesh, as of `slotmesh.testing.mesh`; or a fake with `endpoint`.
        sync: the same for `def` methods.
    """
    token = current_source.set(_GivenMesh(mesh, sync))
    try:
        yield
    finally:
        current_source.reset(token)


class ReplicaFields(TypedDict, total=False):
    """The fields of a replica's context, documented at `slotmesh.ReplicaContext`."""

    replica_id: str
    backend: str
    version: str
    rank: int | None
    num_replicas: int | None
    devices: tuple[str, ...]


@contextmanager
def replica_context(**fields: Unpack[ReplicaFields]) -> Iterator[ReplicaContext]:
    """Within the block `slotmesh.replica()` has these fields, for handlers that the test calls without a replica."""
    context = ReplicaContext(**fields)
    token = current_replica.set(OwnReplica(context))
    try:
        yield context
    finally:
        current_replica.reset(token)


class _GivenMesh:
    """A `MeshSource` with clients of a test."""

    def __init__(self, mesh: Mesh | None, sync: SyncMesh | None) -> None:
        self._mesh = mesh
        self._sync = sync

    def client(self) -> Mesh:
        if self._mesh is None:
            raise RuntimeError("slotmesh.testing.own_mesh was given no mesh for asyncio: own_mesh(mesh)")
        return self._mesh

    def sync_client(self) -> SyncMesh:
        if self._sync is None:
            raise RuntimeError("slotmesh.testing.own_mesh was given no mesh for threads: own_mesh(sync=…)")
        return self._sync
