"""One backend as the router sees it: its replicas, its queue and its balancer.

Owner: the scheduler.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Generic, Protocol, TypeVar

from router_service.core.counters import BackendCounts
from router_service.core.queueing.admission import Account
from router_service.core.queueing.due_queue import DueQueue
from router_service.core.queueing.fair_queue import FairQueue
from router_service.core.queueing.reservations import ConstrainedReservations
from router_service.core.replicas.ejection import Ejections
from router_service.core.replicas.retries import RetryBudget
from router_service.core.replicas.slicing import MethodTime, joins
from router_service.core.routing.balancers import Balancer, Candidate, RoutingHooks, new_balancer
from router_service.core.routing.rosters import ReplicaKey
from router_service.core.routing.sampling import Chance
from router_service.core.routing.table import BackendRoute
from slotmesh.spec.model import SloScope


class BackendMember(Candidate, Protocol):
    """A replica, as its backend sees it."""

    bound: int
    keyed: int
    times: Mapping[str, MethodTime]
    work_ns: int

    @property
    def free_slots(self) -> int:
        """Unkeyed calls that it could start at once."""

    def refresh(self) -> None:
        """Capacity, link, joining or draining changed."""


MemberT = TypeVar("MemberT", bound=BackendMember)


class RoutedBackend(Generic[MemberT]):
    """Mutable state of one backend. Compared by identity."""

    __slots__ = (
        "_balancer_name",
        "_chance",
        "_slo_scope",
        "account",
        "balancer",
        "candidates",
        "constrained",
        "counts",
        "ejections",
        "filling",
        "hooks",
        "max_wire_batch_size",
        "name",
        "queue",
        "replicas",
        "retries",
    )

    def __init__(self, route: BackendRoute, counts: BackendCounts, chance: Chance) -> None:
        self.name = route.name
        self.counts = counts
        settings = route.settings
        self.account = Account(
            route.name, settings.max_queued_calls, settings.max_queued_bytes, settings.max_queue_time_s
        )
        self._slo_scope = settings.slo_scope
        self.queue = _queue_for(settings.slo_scope)
        self.constrained = ConstrainedReservations()
        self.retries = RetryBudget()
        self.ejections = Ejections()
        self.replicas: dict[ReplicaKey, MemberT] = {}
        self.candidates = 0
        """Replicas that take calls."""
        self.filling: MemberT | None = None
        """The replica that the latest calls went to: quick ones join them there."""
        self.max_wire_batch_size = settings.max_wire_batch_size
        self._chance = chance
        self._balancer_name = settings.balancer
        self.balancer: Balancer[MemberT] = new_balancer(settings.balancer, chance)
        self.hooks = _hooks(self.balancer)
        """The balancer, where it has hooks for the end of what it placed; else None."""

    def reconfigure(self, route: BackendRoute) -> None:
        """Takes new settings; what waits already stays."""
        account, settings = self.account, route.settings
        account.max_calls, account.max_bytes = settings.max_queued_calls, settings.max_queued_bytes
        account.max_queue_time_s = settings.max_queue_time_s
        self.max_wire_batch_size = settings.max_wire_batch_size
        if settings.balancer is not self._balancer_name:
            self._balancer_name = settings.balancer
            self.balancer = new_balancer(settings.balancer, self._chance)
            self.hooks = _hooks(self.balancer)
            for replica in self.replicas.values():
                self.balancer.changed(replica)
        if settings.slo_scope is not self._slo_scope:
            self._slo_scope = settings.slo_scope
            before, self.queue = self.queue, _queue_for(settings.slo_scope)
            self.queue.brake(is_on=before.is_braked)
            for run in before.drain():
                self.queue.append(run)

    def changed(self, replica: MemberT) -> None:
        """A replica was linked or lost, drains, joined or left."""
        was_taking = replica.taking
        replica.refresh()
        self.candidates += replica.taking - was_taking
        self.balancer.changed(replica)

    def pick(self, method: str) -> MemberT | None:
        """The replica for the next calls of the method: one with `free > 0`, or None.

        The one that is being filled, where they can start at once and join others (`slicing.joins`); else the one that
        the balancer picks.
        """
        filling = self.filling
        if (
            filling is not None
            and filling.work_ns
            and filling.free_slots > 0
            and joins(filling.work_ns, filling.times.get(method))
        ):
            return filling
        self.filling = replica = self.balancer.pick()
        return replica

    @property
    def ongoing(self) -> int:
        """This router's calls at the backend's replicas."""
        return sum(replica.own + replica.keyed for replica in self.replicas.values())

    @property
    def slot_calls(self) -> int:
        """What this router has the backend's replicas do in slots that they have given."""
        return sum(replica.bound for replica in self.replicas.values())


def _queue_for(scope: SloScope) -> FairQueue | DueQueue:
    return DueQueue() if scope is SloScope.BACKEND else FairQueue()


def _hooks(balancer: Balancer[MemberT]) -> RoutingHooks | None:
    return balancer if isinstance(balancer, RoutingHooks) else None
