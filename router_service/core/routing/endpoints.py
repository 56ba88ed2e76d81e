"""One endpoint as the router sees it: how its calls are divided, its partitions, and the runs that wait for a policy.

Invariants: waiting runs are charged to the backend that will get them, if it is known: the owner's, or the only one of
the policy. If it could be one of several, the widest of their limits count. `traffic` is the policy without the
backends that cannot serve, as of the newest `assess`; weights are shares of the rest. A call can name any backend of
the policy, including those of weight 0, as the one that must execute it. Sequences go to the owner of their partition,
whatever its backend: a call with an ordering key may name a backend only if there is no other.
Owner: the scheduler.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain

from router_service.core.calls import KeyOrder
from router_service.core.failures import UNAVAILABLE_DELAY_S, listed
from router_service.core.limits.admission import Account
from router_service.core.queueing.run_queues import RunQueue
from router_service.core.replicas.backends import RoutedBackend
from router_service.core.replicas.replica import RoutedReplica
from router_service.core.rosters import ReplicaKey
from router_service.core.routing.traffic import PolicyStanding
from router_service.core.routing_table import EndpointRoute
from router_service.core.runs import RouterRun
from slotmesh.errors import Failure, Reason


class Partition(KeyOrder):
    """One partition of an endpoint's ordering keys: its owner, and the runs that wait for that owner.

    Purpose: order per key through every change of owner.
    Invariants: runs leave in order of arrival, while the partition is `sendable`; so no call overtakes another. A call
    that is looked up at an earlier owner holds back only younger calls of its own ordering key.
    Owner: the scheduler; made when the first key of the partition is called.
    """

    __slots__ = ("endpoint", "lanes", "listed", "owner", "queue")

    def __init__(self, endpoint: str, number: int) -> None:
        super().__init__(number)
        self.endpoint = endpoint
        self.owner: RoutedReplica | None = None
        self.queue = RunQueue()
        self.lanes: dict[str, list[RouterRun]] = {}
        """By ordering key, a call that is looked up, and younger runs of the key, by age. No lane is empty."""
        self.listed = False
        """Whether the partition is among those that the sender serves at the owner."""

    def assign(self, owner: RoutedReplica | None, epoch: int) -> None:
        """Names the owner."""
        if epoch == self.epoch and owner is self.owner:
            return
        if epoch != self.epoch:
            self.stale = self.inflight
        self.owner, self.epoch = owner, epoch
        self.listed = False

    def keep_place(self, run: RouterRun) -> None:
        """The run is looked up, or waits behind one of its key that is."""
        insort(self.lanes.setdefault(run.options.ordering_key, []), run, key=_place)

    def is_behind_look_up(self, run: RouterRun) -> bool:
        """Whether an older call of the run's ordering key is looked up."""
        lane = self.lanes.get(run.options.ordering_key)
        return lane is not None and _place(lane[0]) < _place(run)

    def give_up_place(self, run: RouterRun) -> None:
        """The run is looked up no more."""
        key = run.options.ordering_key
        if run in self.lanes.get(key, ()):
            self.lanes[key].remove(run)
            if not self.lanes[key]:
                del self.lanes[key]

    def release(self, key: str) -> None:
        """Queues the runs of the key up to the first that is looked up."""
        lane = self.lanes.get(key, [])
        ready = next((at for at, run in enumerate(lane) if run.unanswered and not run.waiting), len(lane))
        for run in lane[:ready]:
            if run.waiting:
                self.queue.insert(run)
        if ready == len(lane):
            self.lanes.pop(key, None)
        else:
            del lane[:ready]

    def waiting_runs(self) -> Iterator[RouterRun]:
        """All runs with waiting calls."""
        runs = chain(self.queue.runs, *self.lanes.values()) if self.lanes else self.queue.runs
        return (run for run in runs if run.waiting)

    def drain(self) -> list[RouterRun]:
        """Takes out all that waits. Calls that are looked up keep their places."""
        runs = list(self.waiting_runs())
        self.queue.drain()
        for key, lane in list(self.lanes.items()):
            lane[:] = [run for run in lane if run.unanswered and not run.waiting]
            if not lane:
                del self.lanes[key]
        return runs

    @property
    def sendable(self) -> bool:
        """Whether the head of the queue may be sent to the owner, without regard to room."""
        owner = self.owner
        return (
            owner is not None
            and owner.linked
            and not owner.draining
            and not owner.is_joining
            and not self.stale
            and self.epoch > self.refused_epoch
        )

    def settled(self, owner_epoch: int) -> bool:
        """A slice has its outcome or was handed back. Returns whether runs may continue and it is not listed."""
        return super().settled(owner_epoch) and bool(self.queue) and not self.listed


def _place(run: RouterRun) -> tuple[int, int]:
    return run.seq, run.ids[0] if run.ids else 0


class RoutedEndpoint:
    """Mutable state of one endpoint."""

    __slots__ = ("account", "is_unavailable", "name", "parked", "partitions", "policy", "route", "traffic", "unowned")

    def __init__(self, route: EndpointRoute, partitions: dict[int, Partition], standing: PolicyStanding) -> None:
        """`partitions`: the ones of an earlier endpoint of this name that are still in use."""
        self.name = route.name
        self.account = Account(route.name, backend="")
        """Charged for waiting runs that belong to no backend yet."""
        self.unowned = self.account
        """Charged for runs that wait in partitions without an owner."""
        self.parked = RunQueue()
        """Unkeyed runs that wait for a policy."""
        self.partitions = partitions
        self.reroute(route, standing)

    def reroute(self, route: EndpointRoute, standing: PolicyStanding) -> None:
        """Applies a new policy, from the next run on, and the limits of its backends."""
        self.route = route
        self.policy = standing.policy
        """The announced policy."""
        self.assess(standing)
        self.account.limit(standing.max_calls, standing.max_bytes, standing.max_queue_time_s)
        self.unowned = standing.only if standing.only is not None else self.account

    def assess(self, standing: PolicyStanding) -> None:
        """Divides calls among the backends that can serve."""
        self.traffic = standing.traffic
        """The policy restricted to backends that can serve, or may soon."""
        self.is_unavailable = standing.is_unavailable
        """No backend of the policy can serve, and none of their replicas is starting: calls fail immediately."""

    def account_of(self, partition: Partition) -> Account:
        """The account that is charged for runs that wait in the partition."""
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


def named_backend_problem(
    run: RouterRun, endpoint: RoutedEndpoint, backends: Mapping[str, RoutedBackend[RoutedReplica]]
) -> Failure | None:
    """The failure if the backend that the run names cannot take it; None if it can."""
    name = run.options.backend
    known = endpoint.route.weights or {}
    if name not in known:
        return no_version(endpoint.name, name, known)
    if run.options.partition >= 0 and endpoint.policy.only != name:
        return sequence_elsewhere(endpoint.name, name)
    backend = backends.get(name)
    if backend is not None and not (backend.is_serving or backend.is_coming):
        return version_unavailable(endpoint.name, name)
    return None


def no_version(endpoint: str, backend: str, known: Iterable[str]) -> Failure:
    """The endpoint's policy does not name the backend that the call names."""
    return Failure(
        reason=Reason.BACKEND_NOT_FOUND,
        message=f"no backend of {endpoint} is named {backend!r}; there is: {listed(known)}",
        metadata={"endpoint": endpoint, "backend": backend},
    )


def sequence_elsewhere(endpoint: str, backend: str) -> Failure:
    """A call with an ordering key names one of several backends."""
    return Failure(
        reason=Reason.BAD_REQUEST,
        message=f"model_version: calls of a sequence go to the backend that owns it, and {endpoint} has other backends "
        f"than {backend}: leave the version empty",
        metadata={"field": "model_version"},
    )


def version_unavailable(endpoint: str, backend: str) -> Failure:
    """The backend that the call names has no replica, and none is starting."""
    return Failure(
        reason=Reason.BACKEND_UNAVAILABLE,
        message=f"no replica of {backend} serves {endpoint}, and none is on its way: `slotmesh status` shows why",
        retry_delay_s=UNAVAILABLE_DELAY_S,
        metadata={"endpoint": endpoint, "backend": backend},
    )
