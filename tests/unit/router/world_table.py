"""The table that a world's controller sends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from router_service.core.routing.rosters import Roster
from router_service.core.routing.table import BackendRoute, EndpointRoute, ReplicaRoute, RoutingTable
from slotmesh.spec.model import Backend
from slotmesh.wire.partitions import PARTITIONS

if TYPE_CHECKING:
    from tests.unit.router.world import World


def routing_table(world: World, revision: int, roster: Roster) -> RoutingTable:
    """What follows from the world as its test has changed it."""
    name, epoch = world.owner
    owners = [((name, "life") if name is not None else None, epoch)] * PARTITIONS
    endpoints = [
        EndpointRoute(name=each, weights=world.weights, shadows=world.shadows, owners=owners)
        for each in world.endpoints
    ]
    return RoutingTable(
        generation="g",
        revision=revision,
        endpoints={each.name: each for each in endpoints},
        backends={
            name: BackendRoute(
                settings=Backend(name=name, **world.settings),
                replicas=[ReplicaRoute(key=(each, "life"), address="", max_ongoing=world.slots) for each in names],
            )
            for name, names in world.backends.items()
        },
        roster=roster,
    )
