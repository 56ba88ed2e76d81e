"""The table that a world's controller sends."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from router_service.core.rosters import KnownDeparture, TableRoster
from router_service.core.routing_table import BackendRoute, EndpointRoute, PartitionOwners, ReplicaRoute, RoutingTable
from slotmesh.calls.key_hash import PARTITIONS, partition_of
from slotmesh.spec.model import Backend, Prospect

if TYPE_CHECKING:
    from router_service.core.rosters import ReplicaKey
    from tests.unit.router.world import World


def next_roster(world: World, revision: int) -> TableRoster:
    """The roster of the table that comes; replicas that have left since the one before have departed."""
    listed = {name for names in world.backends.values() for name in names}
    if listed != world.listed:
        world.roster = world.roster._replace(revision=revision)
        world.departed += [KnownDeparture((each, "life"), world.roster) for each in sorted(world.listed - listed)]
        world.listed = listed
    return TableRoster(world.roster, tuple(world.departed), terms=tuple(world.terms))


def routing_table(world: World, revision: int) -> RoutingTable:
    """What follows from the world as its test has changed it."""
    owners = _owners(world.owner, tuple(world.owner_of.items()))
    endpoints = [
        EndpointRoute(name=each, weights=world.weights, shadows=world.shadows, owners=owners, tenants=world.tenants)
        for each in world.endpoints
    ]
    return RoutingTable(
        generation="g",
        revision=revision,
        endpoints={each.name: each for each in endpoints},
        backends={
            name: BackendRoute(
                settings=Backend(name=name, **world.settings),
                replicas=[
                    ReplicaRoute(
                        key=(each, "life"),
                        address="",
                        max_ongoing=world.slots,
                        is_suspect=each in world.suspects,
                        draining=each in world.draining,
                        rank=world.ranks.get(each),
                    )
                    for each in names
                ],
                prospect=world.prospects.get(name, Prospect.UNKNOWN),
            )
            for name, names in world.backends.items()
        },
        router_addresses=world.routers,
        roster=next_roster(world, revision),
    )


@lru_cache
def _owners(of_all: tuple[str | None, int], of_keys: tuple[tuple[str, tuple[str | None, int]], ...]) -> PartitionOwners:
    """Of all partitions; the same object as long as they are the same, as tables that follow each other have them."""
    owners = [_owner(*of_all)] * PARTITIONS
    for key, owner in of_keys:
        owners[partition_of(key)] = _owner(*owner)
    return PartitionOwners.of(owners)


def _owner(name: str | None, epoch: int) -> tuple[ReplicaKey | None, int]:
    return ((name, "life") if name is not None else None), epoch
