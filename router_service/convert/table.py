"""The controller's routing table, as the core's values.

Owner: pure functions of the router's edge.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from router_service.core.routing.rosters import KnownDeparture, KnownGeneration, ReplicaKey, RosterVersion, TableRoster
from router_service.core.routing.table import BackendRoute, EndpointRoute, ReplicaRoute, RoutingTable
from slotmesh.spec.model import Backend
from slotmesh.spec.wire import backend_from_wire, backend_within
from slotmesh.v1 import membership_service_pb2, mesh_pb2


def table_from_wire(wire: membership_service_pb2.RoutingTable) -> RoutingTable:
    """The controller's table."""
    return RoutingTable(
        generation=wire.generation,
        revision=wire.revision,
        endpoints={each.name: _endpoint(each) for each in wire.endpoints},
        backends={each.name: _backend(each) for each in wire.backends},
        router_addresses=tuple(wire.router_addresses),
        roster=TableRoster(
            RosterVersion(wire.generation, wire.roster_revision),
            tuple(
                KnownDeparture((each.replica_id, each.incarnation), RosterVersion(each.generation, each.revision))
                for each in wire.departed
            ),
            wire.departed_since,
            tuple(KnownGeneration(each.generation, each.revision, each.departed_since) for each in wire.covers),
        ),
    )


def _endpoint(wire: membership_service_pb2.EndpointRoute) -> EndpointRoute:
    keys = tuple((owner.replica_id, owner.incarnation) for owner in wire.owners)
    return EndpointRoute(
        name=wire.name,
        weights=dict(wire.traffic.weights) if wire.HasField("traffic") else None,
        shadows=dict(wire.traffic.shadows),
        owners=_owners(keys, tuple(wire.partition_owners), tuple(wire.owner_epochs), wire.base_epoch),
    )


@lru_cache(maxsize=16)
def _owners(
    keys: tuple[ReplicaKey, ...], owners: tuple[int, ...], epochs: tuple[int, ...], base_epoch: int
) -> Sequence[tuple[ReplicaKey | None, int]]:
    """Mostly nothing has moved: then it is the same object, which tells the core so."""
    return [
        (keys[owner] if owner >= 0 else None, base_epoch + epoch) for owner, epoch in zip(owners, epochs, strict=True)
    ]


def _backend(wire: membership_service_pb2.BackendRoute) -> BackendRoute:
    settings, unknown_balancer = _settings(wire.name, backend_within(wire).SerializeToString())
    return BackendRoute(
        settings=settings,
        replicas=[
            ReplicaRoute(
                key=(each.replica_id, each.incarnation),
                address=each.address,
                max_ongoing=max(1, each.max_ongoing),
                draining=each.draining,
            )
            for each in wire.replicas
        ],
        unknown_balancer=unknown_balancer,
    )


@lru_cache(maxsize=1024)
def _settings(name: str, raw: bytes) -> tuple[Backend, int | None]:
    """The settings, and the number of a balancer of a newer protocol: the default one stands in for it."""
    wire = mesh_pb2.Backend.FromString(raw)
    settings, _ = backend_from_wire(wire)
    unknown_balancer = wire.balancer if wire.balancer not in {0, settings.balancer.value} else None
    return replace(settings, name=name), unknown_balancer
