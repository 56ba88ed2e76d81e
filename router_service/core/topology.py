"""What exists: endpoints, backends and replicas, brought in line with each new routing table.

Purpose: the difference between two tables, applied at once, between two runs.
Invariants: a table never goes back; a replica stays known until it owes no answer; every run that lost its queue is
returned, so that none is forgotten.
Owner: the scheduler.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from router_service.core.backends import Backend
from router_service.core.commands import CloseLink, Command, OpenLink
from router_service.core.endpoints import Endpoint
from router_service.core.replicas import Replica
from router_service.core.table import RoutingTable

if TYPE_CHECKING:
    from router_service.core.calls import Run
    from router_service.core.partitions import Partition
    from router_service.core.table import BackendRoute, EndpointRoute, ReplicaKey


class Topology:
    """The newest table, and the state that lives and dies with what it names."""

    def __init__(self, out: list[Command]) -> None:
        self._out = out
        self.table = RoutingTable()
        self.endpoints: dict[str, Endpoint] = {}
        self.backends: dict[str, Backend] = {}
        self.replicas: dict[ReplicaKey, Replica] = {}
        """Those that the table names."""
        self._departed: dict[str, dict[int, Partition]] = {}
        """Partitions of removed endpoints with calls at replicas: should one return, nothing overtakes those calls."""

    def apply(self, table: RoutingTable) -> list[Run]:
        """Takes the table; returns the waiting runs that must be routed anew, oldest first."""
        self.table = table
        homeless = [*self._apply_backends(table), *self._apply_endpoints(table)]
        return sorted((run for run in homeless if run.waiting), key=lambda run: run.age)

    def retire(self, replica: Replica) -> None:
        """Disconnects from a replica that the table no longer names once it owes no answer."""
        if not replica.listed and not replica.retired and not replica.inflight:
            replica.retired = True
            self._out.append(CloseLink(replica))

    def _apply_backends(self, table: RoutingTable) -> list[Run]:
        homeless: list[Run] = []
        for name in self.backends.keys() - table.backends.keys():
            backend = self.backends.pop(name)
            homeless += backend.queue.drain()
            for replica in backend.replicas.values():
                self._unlist(replica)
        for route in table.backends.values():
            if route.name not in self.backends:
                self.backends[route.name] = Backend(route)
            self.backends[route.name].reconfigure(route)
            self._apply_replicas(self.backends[route.name], route)
        return homeless

    def _apply_replicas(self, backend: Backend, route: BackendRoute) -> None:
        wanted = {each.key: each for each in route.replicas}
        for key in backend.replicas.keys() - wanted.keys():
            self._unlist(backend.replicas.pop(key))
        for key, each in wanted.items():
            replica = backend.replicas.get(key)
            if replica is None:
                replica = backend.replicas[key] = self.replicas[key] = Replica(each, backend)
                self._out.append(OpenLink(replica))
            elif each.draining and not replica.draining:
                replica.draining = True
                backend.changed(replica)

    def _unlist(self, replica: Replica) -> None:
        del self.replicas[replica.key]
        replica.listed = False
        replica.draining = True
        replica.backend.changed(replica)
        self.retire(replica)

    def _apply_endpoints(self, table: RoutingTable) -> list[Run]:
        homeless: list[Run] = []
        for name in self.endpoints.keys() - table.endpoints.keys():
            endpoint = self.endpoints.pop(name)
            homeless += endpoint.parked.drain()
            for partition in endpoint.partitions.values():
                homeless += partition.queue.drain()
            self._departed[name] = endpoint.partitions
        for route in table.endpoints.values():
            if route.name not in self.endpoints:
                self.endpoints[route.name] = Endpoint(route, self._departed.pop(route.name, {}))
            homeless += self._reroute(self.endpoints[route.name], route)
        self._forget_departed()
        for backend in self.backends.values():
            homeless += self._without_policy(backend)
        return homeless

    def _forget_departed(self) -> None:
        for name, partitions in list(self._departed.items()):
            if held := {number: each for number, each in partitions.items() if each.inflight}:
                self._departed[name] = held
            else:
                del self._departed[name]

    def _without_policy(self, backend: Backend) -> list[Run]:
        """Takes runs out of the backend's queue whose endpoint is gone or no longer sends there."""
        runs = backend.queue.drain()
        moved: list[Run] = []
        for run in runs:
            endpoint = self.endpoints.get(run.endpoint)
            if endpoint is None or not (endpoint.route.weights or {}).get(backend.name):
                moved.append(run)
            else:
                backend.queue.append(run)
        return moved

    def _reroute(self, endpoint: Endpoint, route: EndpointRoute) -> list[Run]:
        endpoint.reroute(route)
        for partition in endpoint.partitions.values():
            self._assign(endpoint, partition)
        return endpoint.parked.drain() if route.weights else []

    def _assign(self, endpoint: Endpoint, partition: Partition) -> None:
        """Gives the partition its owner; what waits is charged to the new owner's backend."""
        owner, epoch = endpoint.owner_of(partition.number, self.replicas)
        if not partition.assign(owner, epoch):
            return
        account = owner.backend.account if owner is not None else endpoint.account
        for run in partition.queue.drain():
            if run.account is not account:
                if run.account is not None:
                    run.account.release(run, run.waiting)
                account.charge_all(run)
            partition.queue.append(run)
