"""The model of `slotmesh.spec` from and to the messages of `slotmesh.v1`.

Invariants: from the wire never raises on what a peer sent: mistakes are returned beside the value; unset fields become
the model's defaults, unknown enum values are mistakes and never a silent default.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from google.protobuf import duration_pb2, struct_pb2

from slotmesh.codec.json_values import struct_from_wire
from slotmesh.spec.model import Backend, Balancer, Endpoint, JsonValue, Mesh, Mistake, TrafficPolicy
from slotmesh.spec.rules import show
from slotmesh.v1 import mesh_pb2


def mesh_to_wire(mesh: Mesh) -> mesh_pb2.Mesh:
    return mesh_pb2.Mesh(backends=map(backend_to_wire, mesh.backends), endpoints=map(endpoint_to_wire, mesh.endpoints))


def backend_to_wire(backend: Backend) -> mesh_pb2.Backend:
    wire = mesh_pb2.Backend(
        name=backend.name,
        handler=backend.handler,
        num_replicas=backend.num_replicas,
        max_ongoing=backend.max_ongoing,
        prefetch=backend.prefetch,
        max_batch_size=backend.max_batch_size,
        max_queued_calls=backend.max_queued_calls,
        max_queued_bytes=backend.max_queued_bytes,
        max_queue_time=duration_to_wire(backend.max_queue_time_s),
        balancer=mesh_pb2.Balancer.ValueType(backend.balancer.value),
        graceful_timeout=duration_to_wire(backend.graceful_timeout_s),
        own_loop=backend.own_loop,
    )
    if backend.health_check_period_s is not None:
        wire.health_check_period.CopyFrom(duration_to_wire(backend.health_check_period_s))
    if backend.health_check_timeout_s is not None:
        wire.health_check_timeout.CopyFrom(duration_to_wire(backend.health_check_timeout_s))
    if backend.user_config:
        wire.user_config.CopyFrom(struct_to_wire(backend.user_config))
    return wire


def endpoint_to_wire(endpoint: Endpoint) -> mesh_pb2.Endpoint:
    return mesh_pb2.Endpoint(
        name=endpoint.name, traffic=None if endpoint.traffic is None else traffic_to_wire(endpoint.traffic)
    )


def traffic_to_wire(traffic: TrafficPolicy) -> mesh_pb2.TrafficPolicy:
    return mesh_pb2.TrafficPolicy(weights=traffic.weights, shadows=traffic.shadows)


def duration_to_wire(seconds: float) -> duration_pb2.Duration:
    wire = duration_pb2.Duration()
    wire.FromNanoseconds(round(seconds * 1e9))
    return wire


def struct_to_wire(config: Mapping[str, JsonValue]) -> struct_pb2.Struct:
    wire = struct_pb2.Struct()
    wire.update({name: _plain(value) for name, value in config.items()})
    return wire


def mesh_from_wire(wire: mesh_pb2.Mesh) -> tuple[Mesh, list[Mistake]]:
    """The mesh that a peer sent, and what in it has no value in the model. The rules are still to be asked."""
    mistakes: list[Mistake] = []
    mesh = Mesh(
        backends=tuple(_backend(backend, mistakes) for backend in wire.backends),
        endpoints=tuple(endpoint_from_wire(endpoint) for endpoint in wire.endpoints),
    )
    return mesh, mistakes


def backend_from_wire(wire: mesh_pb2.Backend) -> tuple[Backend, list[Mistake]]:
    """The backend that a peer sent, and what in it has no value in the model. The rules are still to be asked."""
    mistakes: list[Mistake] = []
    return _backend(wire, mistakes), mistakes


def endpoint_from_wire(wire: mesh_pb2.Endpoint) -> Endpoint:
    """The endpoint that a peer sent. The rules are still to be asked."""
    return Endpoint(name=wire.name, traffic=traffic_from_wire(wire.traffic) if wire.HasField("traffic") else None)


def traffic_from_wire(wire: mesh_pb2.TrafficPolicy) -> TrafficPolicy:
    return TrafficPolicy(weights=dict(wire.weights), shadows=dict(wire.shadows))


def _backend(wire: mesh_pb2.Backend, mistakes: list[Mistake]) -> Backend:
    path = f"backends.{show(wire.name)}"
    unset = Backend(name=wire.name)
    balancer = unset.balancer
    try:
        balancer = Balancer(wire.balancer or balancer.value)
    except ValueError:
        mistakes.append(Mistake(f"{path}.balancer", f"{wire.balancer} is no value that this version knows"))
    return Backend(
        name=wire.name,
        handler=wire.handler,
        num_replicas=wire.num_replicas if wire.HasField("num_replicas") else None,
        max_ongoing=wire.max_ongoing if wire.HasField("max_ongoing") else None,
        prefetch=wire.prefetch if wire.HasField("prefetch") else None,
        user_config=struct_from_wire(wire.user_config),
        max_batch_size=wire.max_batch_size if wire.HasField("max_batch_size") else unset.max_batch_size,
        max_queued_calls=wire.max_queued_calls if wire.HasField("max_queued_calls") else unset.max_queued_calls,
        max_queued_bytes=wire.max_queued_bytes if wire.HasField("max_queued_bytes") else unset.max_queued_bytes,
        max_queue_time_s=seconds(wire.max_queue_time) if wire.HasField("max_queue_time") else unset.max_queue_time_s,
        balancer=balancer,
        graceful_timeout_s=(
            seconds(wire.graceful_timeout) if wire.HasField("graceful_timeout") else unset.graceful_timeout_s
        ),
        health_check_period_s=seconds(wire.health_check_period) if wire.HasField("health_check_period") else None,
        health_check_timeout_s=seconds(wire.health_check_timeout) if wire.HasField("health_check_timeout") else None,
        own_loop=wire.own_loop if wire.HasField("own_loop") else None,
    )


def seconds(wire: duration_pb2.Duration) -> float:
    """Seconds of a duration; unlike `ToTimedelta` it takes whatever a peer sent, for the rules to judge."""
    return (wire.seconds * 10**9 + wire.nanos) / 10**9  # in integers, so that what was sent is what comes out


def _plain(value: JsonValue) -> JsonValue:
    """Lists and dicts: a Struct takes no other sequences and mappings."""
    if isinstance(value, Mapping):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(inner) for inner in value]
    return value
