"""A mesh of real cores: routers, replicas and links between all of them, under Poisson load.

Invariants: one seed gives one course of events. Arrivals, service times, routers and replicas draw from streams of
their own, so that the same calls arrive whatever the balancer does.
"""

from __future__ import annotations

from functools import partial
from random import Random
from typing import TYPE_CHECKING

from router_service.core.calls import RouterCallOptions
from simulation.kernel import Kernel
from simulation.ledger import SimulationLedger
from simulation.queues.figures import Figures, summarise
from simulation.queues.replica import QueuesReplica
from simulation.queues.router import QueuesRouter
from simulation.queues.wiring import ENDPOINT, connect, stream, table_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from router_service.core.balancers import OwnBalancer
    from router_service.core.replicas.replica import RoutedReplica as Far
    from simulation.queues.settings import QueuesSettings

_STEPS = 50
"""How often progress is told."""


class QueuesMesh:
    """One simulation. All links open at its beginning."""

    def __init__(
        self,
        settings: QueuesSettings,
        balancer: Callable[[], OwnBalancer[Far]] | None = None,
        options: Callable[[Random], RouterCallOptions] = lambda _: RouterCallOptions(),
    ) -> None:
        """`balancer` makes one for each router, in the place of the one that the settings name.

        `options`: draws those of the calls of a batch.
        """
        self._settings = settings
        self._options, self._option_draws = options, stream(settings.seed, "options")
        self._kernel = Kernel()
        self._ledger = SimulationLedger(settings.slots * settings.replicas)
        self._arrivals = stream(settings.seed, "arrivals")
        services, replicas = stream(settings.seed, "services"), stream(settings.seed, "replicas")
        self.replicas = [
            QueuesReplica(
                self._kernel,
                self._ledger,
                slots=settings.slots,
                travel=settings.link_delay,
                service_time=lambda _: services.expovariate(1.0),
                capacity_gap=settings.capacity_gap,
                draws=replicas,
            )
            for _ in range(settings.replicas)
        ]
        self._addresses = [f"router {number}" for number in range(settings.routers)]
        self.routers = [
            QueuesRouter(
                self._kernel, self._ledger, stream(settings.seed, address).random, address, settings.subset_size
            )
            for address in self._addresses
        ]
        self._last: int | None = None
        """After so many calls no more arrive; None while that is not known."""
        self._connect(balancer)

    def run(self, progress: Callable[[float], None] | None = None) -> Figures:
        """Warms up, measures, and lets every call end. `progress` hears which share of the measured calls is there.

        Raises:
            Violation: a core broke a promise.
        """
        settings, kernel, ledger = self._settings, self._kernel, self._ledger
        self._fill()
        for router in self.routers:
            self._plan_arrival(router)
        kernel.run(lambda: kernel.now >= settings.warm_up)
        first = ledger.measure_from(kernel.now)
        self._last = first + settings.calls
        for step in range(1, _STEPS + 1):
            kernel.run(partial(self._have_arrived, first + settings.calls * step // _STEPS))
            if progress is not None:
                progress(step / _STEPS)
        counted = ledger.counted(kernel.now)
        kernel.run(lambda: False)
        ledger.check()
        return summarise(settings, ledger.waited[first : self._last], ledger.failed, counted, kernel.events)

    @property
    def links(self) -> list[int]:
        """Links of each router."""
        return [len(router.links) for router in self.routers]

    def _connect(self, balancer: Callable[[], OwnBalancer[Far]] | None) -> None:
        """The table reaches the routers, and all links open."""
        settings = self._settings
        table = table_of(settings.replicas, settings.slots, self._addresses, settings.balancer)
        for router in self.routers:
            found = router.apply(table)
            if balancer is not None:
                router.balance_by(balancer())
            list(connect(router, found, self.replicas, self._kernel, settings.link_delay))

    def _fill(self) -> None:
        """As many calls as run on average are there at once: service times have no memory, so the mesh starts warm."""
        for router in self.routers:
            for _ in range(int(self._settings.arrival_rate / self._settings.routers)):
                self._submit(router, 1)

    def _plan_arrival(self, router: QueuesRouter) -> None:
        rate = self._settings.arrival_rate / self._settings.routers / self._settings.batch
        self._kernel.at(self._kernel.now + self._arrivals.expovariate(rate), self._arrive, router)

    def _arrive(self, router: QueuesRouter) -> None:
        if not self._have_arrived(self._last):
            self._plan_arrival(router)
            self._submit(router, self._settings.batch)

    def _submit(self, router: QueuesRouter, calls: int) -> None:
        router.submit(ENDPOINT, self._ledger.arrive(calls, self._kernel.now), self._options(self._option_draws))

    def _have_arrived(self, calls: int | None) -> bool:
        return calls is not None and len(self._ledger.arrived) >= calls
