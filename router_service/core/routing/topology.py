"""The endpoints, backends and replicas that exist, updated to each new routing table.

Purpose: the difference between two tables is applied as a whole, between two runs. Backends that are the same objects
in both tables are unchanged.
Invariants: a table is never replaced by an older one; a replica stays known until all its calls are answered; every run
that lost its queue is returned, so that none is lost. A run that was admitted stays with its backend when the policy
changes, while the backend has a replica to run it.
Owner: the scheduler.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final, NamedTuple

from router_service.core.commands import Step
from router_service.core.counters import RouterCounters
from router_service.core.limits.capacity import KnownReplica
from router_service.core.plugged_balancers import NO_PLUG_INS, PlugIns
from router_service.core.replicas.backends import RoutedBackend
from router_service.core.replicas.replica import RoutedReplica
from router_service.core.rosters import ReplicaKey
from router_service.core.routing.earlier_owners import EarlierOwners, EarlierOwnersOfPartition
from router_service.core.routing.endpoints import Partition, RoutedEndpoint
from router_service.core.routing.replica_links import SubsetLinks, is_busy
from router_service.core.routing.traffic import PolicyStandings
from router_service.core.routing_table import BackendRoute, RoutingTable
from router_service.core.runs import RouterRun
from router_service.core.sampling import Chance

MAX_CANDIDATES: Final = 16
"""Maximum number of replicas at which a call is looked up if this router has missed owners of its partition."""


class TableChange(NamedTuple):
    """What a new table means for waiting runs."""

    homeless: list[RouterRun]
    """Must be routed again, oldest first."""
    recharged: list[RouterRun]
    """Wait for another backend, and so with another limit of time."""
    reassigned: list[RoutedEndpoint]
    """Endpoints whose partitions have new owners: their runs may continue."""
    drained: list[RoutedReplica]
    """Drain from now on."""


class Topology:
    """The newest table, and the state of each endpoint, backend and replica that it names."""

    def __init__(
        self,
        counters: RouterCounters,
        chance: Chance,
        links: SubsetLinks,
        prefix_blocks: int,
        plug_ins: PlugIns = NO_PLUG_INS,
        zone: str = "",
    ) -> None:
        """`prefix_blocks`: of prompts, known of each backend. `zone`: that of the router; empty if it has none."""
        self._counters = counters
        self._prefix_blocks = prefix_blocks
        self._chance = chance
        self._plug_ins = plug_ins
        self.zone = zone
        self.links = links
        self.table = RoutingTable()
        self.endpoints: dict[str, RoutedEndpoint] = {}
        """Endpoints that calls have used; there is no state of the others, of which a table may have thousands."""
        self.backends: dict[str, RoutedBackend[RoutedReplica]] = {}
        self.replicas: dict[ReplicaKey, RoutedReplica] = {}
        """Replicas in the table."""
        self.connected: dict[KnownReplica, RoutedReplica] = {}
        """Replicas that may have slices, including those removed from the table, until they are retired."""
        self._earlier_owners = EarlierOwners()
        self._departed: dict[str, dict[int, Partition]] = {}
        """Partitions of removed endpoints with calls at replicas: should one return, nothing overtakes those calls."""
        self._was: dict[ReplicaKey, RoutedReplica | None] = {}
        """While a table is applied: the previous replica of each key that it has changed."""
        self._drained: list[RoutedReplica] = []
        """The same: replicas that drain by it."""
        self._standings = PolicyStandings(self.backends, ())
        """Standings as of the newest table or `assess`."""
        self._is_braked = False
        """The brake of the queues of all backends, including new ones."""

    def apply(self, table: RoutingTable, step: Step) -> TableChange:
        """Applies the table."""
        before_table, self.table = self.table, table
        self._earlier_owners.changed(before_table.endpoints, table.endpoints, step.now)
        is_first = not before_table.revision
        self._was.clear()
        self._drained = []
        homeless = [*self._apply_backends(table, before_table, step)]
        are_same = table.backends.keys() == before_table.backends.keys() and all(
            table.backends[name] is route for name, route in before_table.backends.items()
        )
        if not are_same or table.router_addresses != before_table.router_addresses:
            self.links.follow(table, self.backends, step)
        others = {key: before for key, before in self._was.items() if self.replicas.get(key) is not before}
        for key, before in others.items():
            if (replica := self.replicas.get(key)) is not None:
                replica.is_joining = before is None or before.is_joining
                if is_first and replica.has_link and not replica.draining:
                    replica.backend.await_replica(replica, is_awaited=True)
        for backend in self.backends.values():
            are_same = are_same and backend.is_serving is backend.can_serve
            step.has_flipped = step.has_flipped or not backend.can_serve or not backend.is_serving
            backend.is_serving = backend.can_serve
        change = TableChange(homeless, [], [], self._drained)
        self._apply_endpoints(table, change, others, are_backends_same=are_same)
        for backend in self.backends.values():
            # They are few, and any change of the replicas may be one for them.
            homeless += backend.constrained.drain()
        return change._replace(homeless=sorted((run for run in homeless if run.waiting), key=lambda run: run.age))

    def changed(self, replica: RoutedReplica, step: Step) -> None:
        """The replica was linked or lost, drains, joins no longer, or has reported another load."""
        backend = replica.backend
        backend.changed(replica)
        if backend.is_serving is not backend.can_serve:
            step.has_flipped = True

    def endpoint(self, name: str) -> RoutedEndpoint | None:
        """The endpoint, made at its first use; None if the table does not name it."""
        endpoint = self.endpoints.get(name)
        if endpoint is None and (route := self.table.endpoints.get(name)) is not None:
            standing = self._standings.of_route(route)
            endpoint = self.endpoints[name] = RoutedEndpoint(route, self._departed.pop(name, {}), standing)
            for partition in endpoint.partitions.values():
                partition.assign(*endpoint.owner_of(partition.number, self.replicas))
        return endpoint

    def assess(self) -> list[RouterRun]:
        """Divides calls among the backends that can serve now.

        Returns the waiting runs that must move, oldest first: those of backends that cannot serve and have no share,
        and those of unavailable endpoints whose keys no replica owns.
        """
        for backend in self.backends.values():
            backend.is_serving = backend.can_serve
        homeless: list[RouterRun] = []
        standings = self._standings = self._new_standings()
        for endpoint in self.endpoints.values():
            endpoint.assess(standings.of(endpoint.policy))
            if endpoint.is_unavailable:
                for partition in endpoint.partitions.values():
                    homeless += partition.drain() if partition.owner is None else []
        for backend in self.backends.values():
            if not backend.is_serving and backend.account.calls:
                strangers = {each.name for each in self.endpoints.values() if backend.name not in each.traffic.weights}
                homeless += _take_out(backend, strangers) if strangers else []
                homeless += backend.constrained.drain()
        return sorted((run for run in homeless if run.waiting), key=lambda run: run.age)

    def is_departed(self, key: ReplicaKey) -> bool:
        """Whether this incarnation of the replica is known to have ended. False proves nothing."""
        return any(each.key == key for each in self.table.roster.departed)

    def earlier_owners(self, partition: Partition, now: float) -> EarlierOwnersOfPartition:
        """Owners of the last minute. If the router has missed some, each replica may be one, if they are few."""
        earlier = self._earlier_owners.of(partition.endpoint, partition.number, now)
        if not earlier.is_complete and len(self.replicas) <= MAX_CANDIDATES:
            epochs = {**dict.fromkeys(self.replicas, partition.epoch), **earlier.epochs}
            return EarlierOwnersOfPartition(epochs)
        return earlier

    def partitions(self) -> Iterator[Partition]:
        """Every partition that is in use."""
        return (partition for endpoint in self.endpoints.values() for partition in endpoint.partitions.values())

    def brake(self, *, is_on: bool) -> None:
        """Puts the brake on the queues of all backends, or takes it off."""
        self._is_braked = is_on
        for backend in self.backends.values():
            backend.queue.brake(is_on=is_on)

    def retire(self, replica: RoutedReplica, step: Step) -> None:
        """Disconnects from a replica that was removed from the table once nothing is open there."""
        if not (replica.listed or replica.retired or is_busy(replica)):
            replica.retired = True
            del self.connected[replica]
            self.links.retire(replica, step)

    def release_link(self, replica: RoutedReplica, step: Step) -> None:
        """One of the users of its link (`RoutedReplica.link_users`) needs it no longer."""
        replica.link_users -= 1
        self.retire(replica, step)

    # -- backends --------------------------------------------------------------------------------------------------

    def _apply_backends(self, table: RoutingTable, before: RoutingTable, step: Step) -> list[RouterRun]:
        homeless: list[RouterRun] = []
        for name in self.backends.keys() - table.backends.keys():
            backend = self.backends.pop(name)
            homeless += backend.queue.drain()
            homeless += backend.constrained.drain()
            for replica in backend.replicas.values():
                self._unlist(replica, step)
        for route in table.backends.values():
            if before.backends.get(route.name) is route and route.name in self.backends:
                continue  # there may be thousands of replicas, of which few change
            backend = self.backends.get(route.name) or self._add_backend(route)
            backend.reconfigure(route)
            self._apply_replicas(backend, route, step)
        return homeless

    def _add_backend(self, route: BackendRoute) -> RoutedBackend[RoutedReplica]:
        counts = self._counters.backend(route.name)
        backend = self.backends[route.name] = RoutedBackend(
            route, counts, self._chance, self._prefix_blocks, self._plug_ins, self.zone
        )
        backend.queue.brake(is_on=self._is_braked)
        return backend

    def _apply_replicas(self, backend: RoutedBackend[RoutedReplica], route: BackendRoute, step: Step) -> None:
        wanted = {each.key: each for each in route.replicas}
        for key in backend.replicas.keys() - wanted.keys():
            self._unlist(backend.replicas.pop(key), step)
        has_moved = False
        for key, each in wanted.items():
            replica = backend.replicas.get(key)
            if replica is None:
                self._was.setdefault(key, self.replicas.get(key))
                replica = backend.replicas[key] = self.replicas[key] = RoutedReplica(each, backend)
                self.connected[replica] = replica
                backend.changed(replica)
            elif each.draining and not replica.draining:
                replica.draining = True
                backend.changed(replica)
                self._drained.append(replica)
            if each.rank is not None and each.rank != replica.rank:  # a restarted controller may not know it yet
                replica.rank = each.rank
                backend.load_changed(replica)
            if each.zone and each.zone != replica.zone:
                # It is known later than the replica if the controller is new.
                replica.place(each.zone)
                has_moved = True
            if each.is_suspect != (replica in backend.suspects):
                backend.suspect(replica, is_suspect=each.is_suspect)
        if has_moved:
            backend.rebuild_balancer()

    def _unlist(self, replica: RoutedReplica, step: Step) -> None:
        if self.replicas.get(replica.key) is replica:
            self._was.setdefault(replica.key, replica)
            del self.replicas[replica.key]
        replica.listed = False
        self.links.unlisted(replica)
        replica.draining = True
        replica.backend.suspect(replica, is_suspect=False)
        replica.backend.ejections.forget(replica.key)
        self.retire(replica, step)

    # -- endpoints -------------------------------------------------------------------------------------------------

    def _apply_endpoints(
        self, table: RoutingTable, change: TableChange, others: Collection[ReplicaKey], *, are_backends_same: bool
    ) -> None:
        """`others` are the keys whose replica was replaced or removed."""
        homeless = change.homeless
        homeless += self._remove_endpoints(self.endpoints.keys() - table.endpoints.keys())
        self._counters.endpoints.update(table.endpoints)
        standings = self._standings = self._new_standings()
        for endpoint in self.endpoints.values():
            route = table.endpoints[endpoint.name]
            is_same = endpoint.route is route
            if is_same and are_backends_same and not others:
                continue
            owners, unowned = endpoint.route.owners, endpoint.unowned
            endpoint.reroute(route, standings.of(endpoint.policy) if is_same else standings.of_route(route))
            is_same = route.owners is owners and endpoint.unowned is unowned
            if not is_same or any(key in others for key in owners.keys):
                change.reassigned.append(endpoint)
                self._assign_partitions(endpoint, change)
            homeless += endpoint.parked.drain() if endpoint.policy.weights else []
        self._forget_departed()

    def _new_standings(self) -> PolicyStandings:
        return PolicyStandings(self.backends, (endpoint.policy for endpoint in self.endpoints.values()))

    def _remove_endpoints(self, names: Collection[str]) -> list[RouterRun]:
        homeless: list[RouterRun] = []
        for name in names:
            endpoint = self.endpoints.pop(name)
            homeless += endpoint.parked.drain()
            for partition in endpoint.partitions.values():
                homeless += partition.drain()
            self._departed[name] = endpoint.partitions
        if names:
            for backend in self.backends.values():
                homeless += _take_out(backend, names)
        return homeless

    def _forget_departed(self) -> None:
        for name, partitions in list(self._departed.items()):
            if held := {number: each for number, each in partitions.items() if each.inflight or each.lanes}:
                self._departed[name] = held
            else:
                del self._departed[name]

    def _assign_partitions(self, endpoint: RoutedEndpoint, change: TableChange) -> None:
        """Assigns each partition its owner, and charges waiting runs to their next backends.

        If a waiting call has a request id, all that wait for a new owner are routed again: it may have to be looked up.
        """
        for partition in endpoint.partitions.values():
            before = partition.epoch
            partition.assign(*endpoint.owner_of(partition.number, self.replicas))
            if partition.epoch != before and any(run.options.request is not None for run in partition.waiting_runs()):
                change.homeless.extend(partition.drain())
                continue
            account = endpoint.account_of(partition)
            for run in partition.waiting_runs():
                if run.account is not account:
                    run.uncharge()
                    run.charge_all(account)
                    change.recharged.append(run)


def _take_out(backend: RoutedBackend[RoutedReplica], endpoints: Collection[str]) -> list[RouterRun]:
    """Takes these endpoints' runs out of the backend's queue."""
    out: list[RouterRun] = []
    for run in backend.queue.drain():
        if run.endpoint in endpoints:
            out.append(run)
        else:
            backend.queue.append(run)
    return out
