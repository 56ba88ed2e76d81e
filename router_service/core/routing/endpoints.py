"""One endpoint as the router sees it: how its calls are divided, its partitions, and what waits for a policy.

Invariants: what waits is charged to the backend that will get it, where that is known: the owner's, or the only one of
the policy. Where it could be one of several, the widest limits of these count. `traffic` is the policy without the
backends that cannot serve, as of the newest `assess`; weights are shares of what is left.
Owner: the scheduler.
"""

from __future__ import annotations

from collections.abc import Mapping

from router_service.core.keyed.partitions import Partition
from router_service.core.queueing.admission import Account
from router_service.core.queueing.run_queues import RunQueue
from router_service.core.replicas.replica import RoutedReplica
from router_service.core.routing.rosters import ReplicaKey
from router_service.core.routing.standing import PolicyStanding
from router_service.core.routing.table import EndpointRoute


class RoutedEndpoint:
    """Mutable state of one endpoint."""

    __slots__ = ("account", "is_unavailable", "name", "parked", "partitions", "policy", "route", "traffic", "unowned")

    def __init__(self, route: EndpointRoute, partitions: dict[int, Partition], standing: PolicyStanding) -> None:
        """`partitions` are those that an endpoint of this name had before and that are still in use."""
        self.name = route.name
        self.account = Account(route.name, 0, 0, 0.0, backend="")
        """Charged for what waits and belongs to no backend yet."""
        self.unowned = self.account
        """Charged for what waits in partitions without an owner."""
        self.parked = RunQueue()
        """Unkeyed runs that wait for a policy."""
        self.partitions = partitions
        self.reroute(route, standing)

    def reroute(self, route: EndpointRoute, standing: PolicyStanding) -> None:
        """Takes a new policy, in force from the next run, and the limits of its backends."""
        self.route = route
        self.policy = standing.policy
        """What was announced."""
        self.assess(standing)
        account = self.account
        account.max_calls, account.max_bytes = standing.max_calls, standing.max_bytes
        account.max_queue_time_s = standing.max_queue_time_s
        self.unowned = standing.only if standing.only is not None else account

    def assess(self, standing: PolicyStanding) -> None:
        """Divides calls among the backends that can serve."""
        self.traffic = standing.traffic
        """What calls are divided by."""
        self.is_unavailable = standing.is_unavailable
        """No backend of the policy can serve, and no replica of them is on its way: calls fail at once."""

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
