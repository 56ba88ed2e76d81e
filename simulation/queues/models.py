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
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from heapq import heappop, heappush
from itertools import accumulate
from math import inf
from random import Random
from typing import Final, Protocol

from router_service.core.calls import RouterCallOptions
from router_service.core.events import HandlerStateReported
from simulation.kernel import Kernel
from simulation.queues.figures import quantile
from simulation.queues.link import QueuesLink
from simulation.queues.wiring import WiredMesh, WiredSettings, stream
from slotmesh.handlers.model_places import ModelPlace, ModelPlaces, ModelUses

LARGEST_SHARE: Final = 1.5
LARGEST_OF_COLD_START: Final = 2.0
"""Of a mesh that has places for all models: all that one cache loads it loads once."""
_REPORT_DELAY: Final = 0.5
"""How late routers get a change of what is loaded, mean service times."""


class RoutedBy(StrEnum):
    """What routers choose replicas by."""

    LEAST_LOADED = "least_loaded"
    MODEL = "model"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSettings(WiredSettings):
    """One configuration. Times in mean service times of calls whose model is loaded."""

    routed_by: RoutedBy = RoutedBy.MODEL
    models: int = 300
    exponent: float = 1.0
    """Of Zipf's law: the model of rank r is called in proportion to 1 / r ** exponent."""
    replicas: int = 4
    places: int = 20
    """Models of each replica."""
    slots: int = 16
    load_time: float = 10.0
    busy: float = 0.4
    """Share of the slots that would work, if models were loaded as by one cache."""
    calls: int = 40_000


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
        given = self.settings
        most = LARGEST_SHARE if given.models > given.places * given.replicas else LARGEST_OF_COLD_START
        return given.routed_by is not RoutedBy.MODEL or self.share <= most


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


class CallsOfModels(Protocol):
    """A simulation, as the models of its replicas see it."""

    kernel: Kernel
    services: Random
    model_of: list[int]
    """By call."""

    @property
    def places(self) -> int:
        """Of each replica."""

    @property
    def load_time(self) -> float:
        """In mean service times."""


class ReplicaModels:
    """Those of one replica: its real decisions, and loads that take their time."""

    def __init__(self, mesh: CallsOfModels, links: Sequence[QueuesLink]) -> None:
        self._mesh = mesh
        self._places = ModelPlaces(mesh.places)
        self._ready_at: dict[ModelPlace, float] = {}
        """When models that are being loaded will be."""
        self._links = links
        self._waiting: deque[int] = deque()
        """Calls that run and wait for a place, in order."""
        self.loads = self.calls = 0

    def release(self, place: ModelPlace, uses: ModelUses) -> None:
        place.holders.discard(uses)
        self._place_waiting()

    def serve(self, call: int) -> float | None:
        """The time of a call that starts here; None while it waits for a place."""
        self.calls += 1
        took = self._begin(call)
        if took is None:
            self._waiting.append(call)
        return took

    def _place_waiting(self) -> None:
        for call in list(self._waiting):
            took = self._begin(call)
            if took is not None:
                self._waiting.remove(call)
                self._links[0].replica.end_at(call, self._mesh.kernel.now + took)

    def _begin(self, call: int) -> float | None:
        mesh, uses = self._mesh, ModelUses()
        now = mesh.kernel.now
        found = self._places.take(f"model {mesh.model_of[call]}", uses)
        if found is None:
            return None
        uses.add(found.place, self)
        if found.is_new:
            self.loads += 1
            self._ready_at[found.place] = now + mesh.load_time
            mesh.kernel.at(now + mesh.load_time, self._loaded, found.place)
            if found.victim is not None:
                self._places.unloaded()
                self._report()
        took = self._ready_at.get(found.place, now) - now + mesh.services.expovariate(1.0)
        mesh.kernel.at(now + took, ModelUses.end, uses)
        return took

    def _loaded(self, place: ModelPlace) -> None:
        del self._ready_at[place]
        place.is_loaded = True
        self._place_waiting()
        self._report()

    def _report(self) -> None:
        models = frozenset(self._places.loaded)
        for link in self._links:
            self._mesh.kernel.at(self._mesh.kernel.now + _REPORT_DELAY, self._tell, (link, models))

    def _tell(self, report: tuple[QueuesLink, frozenset[str]]) -> None:
        link, models = report
        event = HandlerStateReported(link.far, {}, models, max_models=self._mesh.places, load_s=self._mesh.load_time)
        link.router.handler_state_changed(event)


class ModelMesh:
    """One simulation."""

    def __init__(self, settings: ModelSettings) -> None:
        self.settings = settings
        self.places, self.load_time = settings.places, settings.load_time
        self.services = stream(settings.seed, "services")
        shares = list(accumulate(1.0 / rank**settings.exponent for rank in range(1, settings.models + 1)))
        draws = stream(settings.seed, "models")
        self.model_of = [bisect_left(shares, draws.random() * shares[-1]) for _ in range(settings.calls)]
        """By call."""
        self._wired = WiredMesh(settings, lambda replica, call: self._models[replica].serve(call))
        self.kernel, self._ledger = self._wired.kernel, self._wired.ledger
        self._models = [ReplicaModels(self, links) for links in self._wired.links]

    def run(self) -> LoadFigures:
        """Until each call has its outcome.

        Raises:
            Violation: a core broke a promise.
        """
        settings, kernel, ledger, arrivals = (
            self.settings,
            self.kernel,
            self._ledger,
            stream(self.settings.seed, "arrivals"),
        )
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

    def _arrive(self, call: int) -> None:
        model = f"model {self.model_of[call]}"
        options = RouterCallOptions(model_id=model if self.settings.routed_by is RoutedBy.MODEL else "")
        self._wired.call(call % self.settings.routers, options)


def simulate(settings: ModelSettings) -> list[LoadFigures]:
    """The same calls, by what routers choose by."""
    return [ModelMesh(replace(settings, routed_by=each)).run() for each in RoutedBy]


def settings(*, is_quick: bool) -> list[ModelSettings]:
    """What is simulated."""
    if is_quick:
        return [ModelSettings(calls=8_000)]
    others = (ModelSettings(exponent=0.8), ModelSettings(exponent=1.2), ModelSettings(busy=0.5))
    cold = (ModelSettings(models=60, busy=0.2, calls=20_000, routers=routers) for routers in (1, 3))
    return [ModelSettings(), ModelSettings(routers=3), *others, *cold]


def table(figures: Sequence[LoadFigures]) -> str:
    """A line for each mesh."""
    first = figures[0].settings
    conditions = (
        f"{first.replicas} replicas with {first.places} places and {first.slots} slots, loads of "
        f"{first.load_time:g} service times. One cache has the places of all replicas."
    )
    titles = (
        "models  Zipf  busy  routers  chosen by       loads  one cache  optimal  × one  × opt.  wait p50   p99  busiest"
    )
    lines = [conditions, titles]
    for it in figures:
        given = it.settings
        verdict = "" if given.routed_by is not RoutedBy.MODEL else " ✓" if it.is_as_expected else " ✗"
        lines.append(
            f"{given.models:6}  {given.exponent:4.1f}  {given.busy:4.0%}  {given.routers:7}  {given.routed_by:<12}  "
            f"{it.loads:7,}  {it.one_cache:9,}  {it.optimal:7,}  {it.share:5.2f}  {it.loads / it.optimal:6.2f}  "
            f"{it.p50:8.3f}  {it.p99:4.2f}  {it.busiest:7.2f}{verdict}"
        )
    return "\n".join(lines)
