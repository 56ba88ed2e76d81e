"""Many models in one backend: how often replicas load them, by what routers choose replicas by.

Each call needs a model, drawn by Zipf's law. A replica keeps some of them, by the decisions of `@slotmesh.multiplexed`:
a call of a model that it has not loaded waits for the load, and the model used longest ago makes room.
What has to hold: loads by models are at most 1.5 times those of *one* cache that has the places of all replicas, evicts
what was used longest ago, and gets the same calls in the order of their arrival. `optimal` are the loads of Belady's
algorithm, which knows all later calls: no router and no replica can.
Invariants: one seed gives one course of events; the same calls arrive whatever routers choose by.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from heapq import heappop, heappush
from itertools import accumulate
from math import inf
from random import Random
from typing import Final

from router_service.core.calls import RouterCallOptions
from router_service.core.events import HandlerStateReported
from router_service.core.rosters import RosterVersion, TableRoster
from router_service.core.routing_table import BackendRoute, EndpointRoute, ReplicaRoute, RoutingTable
from simulation.kernel import Kernel
from simulation.ledger import SimulationLedger, Violation
from simulation.queues.figures import quantile
from simulation.queues.link import QueuesLink
from simulation.queues.replica import QueuesReplica
from simulation.queues.router import QueuesRouter
from slotmesh.handlers.model_places import ModelPlace, ModelPlaces, ModelUses
from slotmesh.spec.model import Backend

LARGEST_SHARE: Final = 1.5
_LINK_DELAY: Final = 0.02
_REPORT_DELAY: Final = 0.5
"""How late routers get a change of what is loaded, mean service times."""
_BACKEND: Final = "backend"


class RoutedBy(StrEnum):
    """What routers choose replicas by."""

    LEAST_LOADED = "least_loaded"
    MODEL = "model"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSettings:
    """One configuration. Times in mean service times of calls whose model is loaded."""

    routed_by: RoutedBy = RoutedBy.MODEL
    models: int = 300
    exponent: float = 1.0
    """Of Zipf's law: the model of rank r is called in proportion to 1 / r ** exponent."""
    replicas: int = 4
    places: int = 20
    """Models of each replica."""
    slots: int = 16
    routers: int = 1
    load_time: float = 10.0
    busy: float = 0.4
    """Share of the slots that would work, if models were loaded as by one cache."""
    calls: int = 40_000
    seed: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadFigures:
    """What came of it."""

    settings: ModelSettings
    loads: int
    one_cache: int
    """Loads of one cache with all places."""
    optimal: int
    """Loads of one cache that knows all later calls."""
    p50: float
    p99: float
    """Queue times, without those of loads."""
    busiest: float
    """Calls of the replica with most of them, as a multiple of the mean."""

    @property
    def share(self) -> float:
        """Loads, as a multiple of those of one cache."""
        return self.loads / self.one_cache

    @property
    def is_as_expected(self) -> bool:
        """Whether what has to hold does."""
        return self.settings.routed_by is not RoutedBy.MODEL or self.share <= LARGEST_SHARE


def loads_of_one_cache(calls: Sequence[int], places: int) -> int:
    """Loads of a cache that evicts what was used longest ago."""
    held: OrderedDict[int, None] = OrderedDict()
    loads = 0
    for model in calls:
        if model not in held:
            loads += 1
            if len(held) == places:
                held.popitem(last=False)
        held[model] = None
        held.move_to_end(model)
    return loads


def least_loads(calls: Sequence[int], places: int) -> int:
    """Loads of a cache that evicts what is used next latest (Belady, 1966)."""
    next_use: list[float] = [inf] * len(calls)
    later: dict[int, int] = {}
    for at in range(len(calls) - 1, -1, -1):
        next_use[at] = later.get(calls[at], inf)
        later[calls[at]] = at
    held: dict[int, float] = {}
    latest: list[tuple[float, int]] = []
    loads = 0
    for at, model in enumerate(calls):
        if model not in held:
            loads += 1
            while len(held) == places:
                due, victim = heappop(latest)
                if held.get(victim) == -due:
                    del held[victim]
        held[model] = next_use[at]
        heappush(latest, (-next_use[at], model))
    return loads


class _Models:
    """Those of one replica: its real decisions, and loads that take their time."""

    def __init__(self, mesh: ModelMesh) -> None:
        self._mesh = mesh
        self._places = ModelPlaces(mesh.settings.places)
        self._ready_at: dict[ModelPlace, float] = {}
        """When models that are being loaded will be."""
        self.links: list[QueuesLink] = []
        self.loads = self.calls = 0

    def release(self, place: ModelPlace, uses: ModelUses) -> None:
        place.holders.discard(uses)

    def serve(self, call: int) -> float:
        """The time of a call that starts here."""
        mesh, uses = self._mesh, ModelUses()
        now = mesh.kernel.now
        self.calls += 1
        found = self._places.take(f"model {mesh.model_of[call]}", uses)
        if found is None:
            raise Violation("all models are in use: there are more slots than places")
        uses.add(found.place, self)
        if found.is_new:
            self.loads += 1
            self._ready_at[found.place] = now + mesh.settings.load_time
            mesh.kernel.at(now + mesh.settings.load_time, self._loaded, found.place)
            if found.victim is not None:
                self._places.unloaded()
                self._report()
        took = self._ready_at.get(found.place, now) - now + mesh.services.expovariate(1.0)
        mesh.kernel.at(now + took, ModelUses.end, uses)
        return took

    def _loaded(self, place: ModelPlace) -> None:
        del self._ready_at[place]
        place.is_loaded = True
        self._report()

    def _report(self) -> None:
        models = frozenset(self._places.loaded)
        for link in self.links:
            self._mesh.kernel.at(self._mesh.kernel.now + _REPORT_DELAY, self._tell, (link, models))

    def _tell(self, report: tuple[QueuesLink, frozenset[str]]) -> None:
        link, models = report
        event = HandlerStateReported(link.far, {}, models, max_models=self._mesh.settings.places)
        link.router.core.step(event, self._mesh.kernel.now)


class ModelMesh:
    """One simulation."""

    def __init__(self, settings: ModelSettings) -> None:
        self.settings = settings
        self.kernel = Kernel()
        self.services = self._stream("services")
        shares = list(accumulate(1.0 / rank**settings.exponent for rank in range(1, settings.models + 1)))
        draws = self._stream("models")
        self.model_of = [bisect_left(shares, draws.random() * shares[-1]) for _ in range(settings.calls)]
        """By call."""
        self._ledger = SimulationLedger(settings.slots * settings.replicas)
        self._models = [_Models(self) for _ in range(settings.replicas)]
        self._routers = self._connect()

    def run(self) -> LoadFigures:
        """Until each call has its outcome.

        Raises:
            Violation: a core broke a promise.
        """
        settings, kernel, ledger, arrivals = self.settings, self.kernel, self._ledger, self._stream("arrivals")
        places = settings.places * settings.replicas
        one_cache = loads_of_one_cache(self.model_of, places)
        mean = 1.0 + settings.load_time * one_cache / settings.calls
        rate, at = settings.busy * settings.slots * settings.replicas / mean, 0.0
        for call in range(settings.calls):
            at += arrivals.expovariate(rate)
            kernel.at(at, self._arrive, call)
        kernel.run(lambda: False)
        ledger.check()
        times = sorted(ledger.waited)
        return LoadFigures(
            settings=settings,
            loads=sum(each.loads for each in self._models),
            one_cache=one_cache,
            optimal=least_loads(self.model_of, places),
            p50=quantile(times, 0.5),
            p99=quantile(times, 0.99),
            busiest=max(each.calls for each in self._models) * settings.replicas / settings.calls,
        )

    def _connect(self) -> list[QueuesRouter]:
        settings, kernel, ledger = self.settings, self.kernel, self._ledger
        replicas = [
            QueuesReplica(
                kernel,
                ledger,
                slots=settings.slots,
                travel=_LINK_DELAY,
                service_time=models.serve,
                capacity_gap=0.1,
                draws=self._stream("replicas"),
            )
            for models in self._models
        ]
        keys = [(f"replica-{number}", "") for number in range(settings.replicas)]
        routes = [ReplicaRoute(key=key, address="", max_ongoing=settings.slots) for key in keys]
        table = RoutingTable(
            generation="simulation",
            endpoints={"endpoint": EndpointRoute(name="endpoint", weights={_BACKEND: 1.0})},
            backends={_BACKEND: BackendRoute(settings=Backend(name=_BACKEND), replicas=routes)},
            router_addresses=[f"router {number}" for number in range(settings.routers)],
            roster=TableRoster(RosterVersion("simulation", 1)),
        )
        routers: list[QueuesRouter] = []
        for address in table.router_addresses:
            router = QueuesRouter(kernel, ledger, self._stream(address).random, address)
            routers.append(router)
            for far in router.apply(table):
                number = keys.index(far.key)
                link = router.links[far] = QueuesLink(router, far, replicas[number], kernel, _LINK_DELAY)
                self._models[number].links.append(link)
                link.open()
        return routers

    def _arrive(self, call: int) -> None:
        model = f"model {self.model_of[call]}"
        options = RouterCallOptions(model_id=model if self.settings.routed_by is RoutedBy.MODEL else "")
        self._routers[call % len(self._routers)].submit("endpoint", self._ledger.arrive(1, self.kernel.now), options)

    def _stream(self, name: str) -> Random:
        return Random(f"{self.settings.seed} {name}")


def simulate(settings: ModelSettings) -> list[LoadFigures]:
    """The same calls, by what routers choose by."""
    return [ModelMesh(replace(settings, routed_by=each)).run() for each in RoutedBy]


def settings(*, is_quick: bool) -> list[ModelSettings]:
    """What is simulated."""
    if is_quick:
        return [ModelSettings(calls=8_000)]
    others = (ModelSettings(exponent=0.8), ModelSettings(exponent=1.2), ModelSettings(busy=0.5))
    return [ModelSettings(), ModelSettings(routers=3), *others]


def table(figures: Sequence[LoadFigures]) -> str:
    """A line for each mesh."""
    first = figures[0].settings
    conditions = (
        f"{first.models} models, {first.replicas} replicas with {first.places} places and {first.slots} slots, "
        f"{first.calls:,} calls, loads of {first.load_time:g} service times. One cache has the places of all replicas."
    )
    titles = "Zipf  busy  routers  chosen by       loads  one cache  optimal  × one  × optimal  wait p50   p99  busiest"
    lines = [conditions, titles]
    for it in figures:
        given = it.settings
        verdict = "" if given.routed_by is not RoutedBy.MODEL else " ✓" if it.is_as_expected else " ✗"
        lines.append(
            f"{given.exponent:4.1f}  {given.busy:4.0%}  {given.routers:7}  {given.routed_by:<12}  {it.loads:7,}  "
            f"{it.one_cache:9,}  {it.optimal:7,}  {it.share:5.2f}  {it.loads / it.optimal:9.2f}  "
            f"{it.p50:8.3f}  {it.p99:4.2f}  {it.busiest:7.2f}{verdict}"
        )
    return "\n".join(lines)
