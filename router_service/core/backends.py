"""One backend as the router sees it: its replicas, its queue and its balancer.

Owner: the scheduler.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from router_service.core.admission import Account
from router_service.core.balancers.least_loaded import LeastLoaded
from router_service.core.queues import RunQueue

if TYPE_CHECKING:
    from router_service.core.balancers import Balancer
    from router_service.core.replicas import Replica
    from router_service.core.table import BackendRoute, ReplicaKey


class Backend:
    """Mutable state of one backend. Compared by identity."""

    __slots__ = ("account", "balancer", "candidates", "name", "queue", "replicas")

    def __init__(self, route: BackendRoute) -> None:
        self.name = route.name
        self.account = Account(route.name, route.max_queued_calls, route.max_queued_bytes, route.max_queue_time_s)
        self.queue = RunQueue()
        self.balancer: Balancer = LeastLoaded()
        self.replicas: dict[ReplicaKey, Replica] = {}
        self.candidates = 0
        """Replicas that take calls."""

    def reconfigure(self, route: BackendRoute) -> None:
        """Takes new bounds; what waits already stays."""
        account = self.account
        account.max_calls, account.max_bytes = route.max_queued_calls, route.max_queued_bytes
        account.max_queue_time_s = route.max_queue_time_s

    def changed(self, replica: Replica) -> None:
        """A replica was linked or lost, drains, joined or left."""
        self.balancer.changed(replica)
        self.candidates = sum(1 for each in self.replicas.values() if each.linked and not each.draining)

    @property
    def ongoing(self) -> int:
        """This router's calls at the backend's replicas."""
        return sum(replica.own + replica.keyed for replica in self.replicas.values())
