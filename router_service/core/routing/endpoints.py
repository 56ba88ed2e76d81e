"""One endpoint as the router sees it: how its calls are divided, its partitions, and what waits for a policy.

Owner: the scheduler.
"""

from __future__ import annotations

from collections.abc import Mapping

from router_service.core.keyed.partitions import Partition
from router_service.core.queueing.admission import Account
from router_service.core.queueing.run_queues import RunQueue
from router_service.core.replicas.replica import RoutedReplica
from router_service.core.routing.rosters import ReplicaKey
from router_service.core.routing.table import EndpointRoute
from router_service.core.routing.traffic import TrafficShares
from slotmesh.spec import model


class RoutedEndpoint:
    """Mutable state of one endpoint."""

    __slots__ = ("account", "name", "parked", "partitions", "route", "traffic")

    def __init__(self, route: EndpointRoute, partitions: dict[int, Partition]) -> None:
        """`partitions` are those that an endpoint of this name had before and that are still in use."""
        self.name = route.name
        defaults = model.Backend(name=route.name)
        self.account = Account(
            route.name, defaults.max_queued_calls, defaults.max_queued_bytes, defaults.max_queue_time_s
        )
        """Charged for what waits and belongs to no backend yet."""
        self.parked = RunQueue()
        """Unkeyed runs that wait for a policy."""
        self.partitions = partitions
        self.reroute(route)

    def reroute(self, route: EndpointRoute) -> None:
        """Takes a new policy, in force from the next run."""
        self.route = route
        self.traffic = TrafficShares(route.weights or {}, route.shadows)

    def partition(self, number: int, replicas: Mapping[ReplicaKey, RoutedReplica]) -> Partition:
        """The partition, made and given its owner at first use."""
        partition = self.partitions.get(number)
        if partition is None:
            partition = self.partitions[number] = Partition(self.name, number)
            partition.assign(*self.owner_of(number, replicas))
        return partition

    def owner_of(self, number: int, replicas: Mapping[ReplicaKey, RoutedReplica]) -> tuple[RoutedReplica | None, int]:
        """Owner and epoch that the table names."""
        if not self.route.owners:
            return None, 0
        key, epoch = self.route.owners[number]
        return (replicas.get(key) if key is not None else None), epoch
