"""One endpoint as the router sees it: how its calls are divided, its partitions, and what waits for a policy.

Invariant: what waits is charged to the backend that will get it, where that is known: the owner's, or the only one of
the policy. Where it could be one of several, the widest limits of these count.
Owner: the scheduler.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from router_service.core.keyed.partitions import Partition
from router_service.core.queueing.admission import Account
from router_service.core.queueing.run_queues import RunQueue
from router_service.core.replicas.replica import RoutedReplica
from router_service.core.routing.backends import RoutedBackend
from router_service.core.routing.rosters import ReplicaKey
from router_service.core.routing.table import EndpointRoute
from router_service.core.routing.traffic import TrafficShares
from slotmesh.spec import model


class RoutedEndpoint:
    """Mutable state of one endpoint."""

    __slots__ = ("account", "name", "parked", "partitions", "route", "traffic", "unowned")

    def __init__(
        self,
        route: EndpointRoute,
        partitions: dict[int, Partition],
        backends: Mapping[str, RoutedBackend[RoutedReplica]],
    ) -> None:
        """`partitions` are those that an endpoint of this name had before and that are still in use."""
        self.name = route.name
        self.account = Account(route.name, 0, 0, 0.0)
        """Charged for what waits and belongs to no backend yet."""
        self.unowned = self.account
        """Charged for what waits in partitions without an owner."""
        self.parked = RunQueue()
        """Unkeyed runs that wait for a policy."""
        self.partitions = partitions
        self.reroute(route, backends)

    def reroute(self, route: EndpointRoute, backends: Mapping[str, RoutedBackend[RoutedReplica]]) -> None:
        """Takes a new policy, in force from the next run, and the limits of its backends."""
        self.route = route
        self.traffic = traffic = TrafficShares(route.weights or {}, route.shadows)
        self._take_limits([backends[name] for name in traffic.weights if name in backends])
        only = backends.get(traffic.only) if traffic.only is not None else None
        self.unowned = only.account if only is not None else self.account

    def account_of(self, partition: Partition) -> Account:
        """The account that is charged for what waits in the partition."""
        owner = partition.owner
        return owner.backend.account if owner is not None else self.unowned

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

    def _take_limits(self, backends: Sequence[RoutedBackend[RoutedReplica]]) -> None:
        """The widest limits of these backends; the defaults of a backend where there is none."""
        defaults = model.Backend(name=self.name)
        each = [backend.account for backend in backends]
        account = self.account
        account.max_calls = max((one.max_calls for one in each), default=defaults.max_queued_calls)
        account.max_bytes = max((one.max_bytes for one in each), default=defaults.max_queued_bytes)
        account.max_queue_time_s = max((one.max_queue_time_s for one in each), default=defaults.max_queue_time_s)
