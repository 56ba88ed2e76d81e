"""One endpoint as the router sees it: how its calls are divided, its partitions, and what waits for a policy.

Invariants: what waits is charged to the backend that will get it, where that is known: the owner's, or the only one of
the policy. Where it could be one of several, the widest limits of these count. `traffic` is the policy without the
backends that cannot serve, as of the newest `assess`; weights are shares of what is left.
Owner: the scheduler.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

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

    __slots__ = ("account", "is_unavailable", "name", "parked", "partitions", "policy", "route", "traffic", "unowned")

    def __init__(
        self,
        route: EndpointRoute,
        partitions: dict[int, Partition],
        backends: Mapping[str, RoutedBackend[RoutedReplica]],
    ) -> None:
        """`partitions` are those that an endpoint of this name had before and that are still in use."""
        self.name = route.name
        self.account = Account(route.name, 0, 0, 0.0, backend="")
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
        self.policy = self.traffic = policy = TrafficShares(route.weights or {}, route.shadows)
        """`policy` is what was announced, `traffic` what calls are divided by."""
        self.is_unavailable = False
        """No backend of the policy can serve, and no replica of them is on its way: calls fail at once."""
        self.assess(backends)
        self._take_limits([backends[name] for name in policy.weights if name in backends])
        only = backends.get(policy.only) if policy.only is not None else None
        self.unowned = only.account if only is not None else self.account

    def assess(self, backends: Mapping[str, RoutedBackend[RoutedReplica]]) -> None:
        """Divides calls among the backends that can serve; where none can, among those that may soon.

        A backend of the policy that no table has named may be named by the next one.
        """
        names = self.policy.weights
        serving = [name for name in names if (each := backends.get(name)) is not None and each.is_serving]
        coming = serving or [name for name in names if (each := backends.get(name)) is None or each.is_coming]
        self.is_unavailable = bool(names) and not coming
        if coming != list(self.traffic.weights):
            self.traffic = self._among(coming)

    def _among(self, names: Collection[str]) -> TrafficShares:
        weights = self.policy.weights
        if len(names) == len(weights):
            return self.policy
        return TrafficShares({name: weights[name] for name in names}, self.policy.shadows)

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
