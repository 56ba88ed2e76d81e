"""One endpoint with one backend: its table, the links of all routers to all replicas, and meshes that need no more.

Invariants: one seed gives one course of events. Each purpose draws from a stream of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Final

from router_service.core.calls import RouterCallOptions
from router_service.core.replicas.replica import RoutedReplica as Far
from router_service.core.rosters import RosterVersion, TableRoster
from router_service.core.routing_table import BackendRoute, EndpointRoute, ReplicaRoute, RoutingTable
from simulation.kernel import Kernel
from simulation.ledger import SimulationLedger
from simulation.queues.link import QueuesLink
from simulation.queues.replica import QueuesReplica
from simulation.queues.router import QueuesRouter
from slotmesh.spec.model import BUILT_IN_BALANCERS, Backend

ENDPOINT: Final = "endpoint"
BACKEND: Final = "backend"
LINK_DELAY: Final = 0.02
_CAPACITY_GAP: Final = 0.1


def stream(seed: int, name: str) -> Random:
    """The random numbers of one purpose."""
    return Random(f"{seed} {name}")


def table_of(
    replicas: int, slots: int, addresses: Sequence[str], balancer: str = BUILT_IN_BALANCERS[0], queue_time: float = 30.0
) -> RoutingTable:
    """The only table."""
    routes = [ReplicaRoute(key=(f"replica-{number}", ""), address="", max_ongoing=slots) for number in range(replicas)]
    settings = Backend(name=BACKEND, balancer=balancer, max_queue_time_s=queue_time)
    return RoutingTable(
        generation="simulation",
        endpoints={ENDPOINT: EndpointRoute(name=ENDPOINT, weights={BACKEND: 1.0})},
        backends={BACKEND: BackendRoute(settings=settings, replicas=routes)},
        router_addresses=addresses,
        roster=TableRoster(RosterVersion("simulation", 1)),
    )


def connect(
    router: QueuesRouter, found: Sequence[Far], replicas: Sequence[QueuesReplica], kernel: Kernel, delay: float
) -> Iterator[tuple[int, QueuesLink]]:
    """The links to the replicas that the router has found in the table open: returns each with its replica's number."""
    for far in found:
        number = int(far.replica_id.removeprefix("replica-"))
        link = router.links[far] = QueuesLink(router, far, replicas[number], kernel, delay)
        link.open()
        yield number, link


@dataclass(frozen=True, slots=True, kw_only=True)
class WiredSettings:
    """What a `WiredMesh` is made of."""

    replicas: int
    slots: int
    """Of each replica."""
    routers: int = 1
    queue_time: float = 30.0
    """For which calls wait at most."""
    seed: int = 1


class WiredMesh:
    """Routers and replicas, where the time of a call depends on its replica. All links open at the beginning."""

    def __init__(
        self, settings: WiredSettings, serve: Callable[[int, int], float | None], ledger: SimulationLedger | None = None
    ) -> None:
        """`serve`: the time of a call that starts, by the numbers of its replica and of the call."""
        self.kernel = kernel = Kernel()
        self.ledger = ledger = ledger or SimulationLedger(settings.slots * settings.replicas)
        self.links: list[list[QueuesLink]] = [[] for _ in range(settings.replicas)]
        """By the number of the replica."""
        self.routers: list[QueuesRouter] = []
        replicas = [
            QueuesReplica(
                kernel,
                ledger,
                slots=settings.slots,
                travel=LINK_DELAY,
                service_time=partial(serve, number),
                capacity_gap=_CAPACITY_GAP,
                draws=stream(settings.seed, "replicas"),
            )
            for number in range(settings.replicas)
        ]
        addresses = [f"router {number}" for number in range(settings.routers)]
        table = table_of(settings.replicas, settings.slots, addresses, queue_time=settings.queue_time)
        for address in addresses:
            router = QueuesRouter(kernel, ledger, stream(settings.seed, address).random, address)
            self.routers.append(router)
            for number, link in connect(router, router.apply(table), replicas, kernel, LINK_DELAY):
                self.links[number].append(link)

    def call(self, router: int, options: RouterCallOptions) -> None:
        """A call arrives at the router."""
        self.routers[router].submit(ENDPOINT, self.ledger.arrive(1, self.kernel.now), options)
