"""Many models and callers that wait for each result before their next call: what replicas do with all permits in use.

All models fit, several times over. So a load after the beginning is one that routing has caused: a call came to a
replica that did not have its model, while others had it. What has to hold: more callers than permits get at least
`LEAST_SHARE` of the calls per service time that the permits could serve.
Invariants: one seed gives one course of events.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from router_service.core.calls import RouterCallOptions
from simulation.ledger import NotifyingLedger
from simulation.queues.figures import quantile
from simulation.queues.models import ReplicaModels
from simulation.queues.wiring import WiredMesh, WiredSettings, stream

LEAST_SHARE: Final = 0.75
_WARM_UP: Final = 0.2
"""Share of the calls that are not measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SaturationSettings(WiredSettings):
    """One configuration. Times in mean service times of calls whose model is loaded."""

    callers: int = 24
    models: int = 12
    exponent: float = 1.0
    """Of Zipf's law; 0: all models are called alike."""
    replicas: int = 3
    slots: int = 8
    places: int = 6
    """Models of each replica."""
    load_time: float = 30.0
    queue_time: float = 3_000.0
    calls: int = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SaturationFigures:
    """What came of it, after the warm-up."""

    settings: SaturationSettings
    rate: float
    """Calls per mean service time."""
    loads: int
    p99: float
    """Times in queues."""

    @property
    def share(self) -> float:
        """The rate, as a share of what permits or callers allow at most."""
        return self.rate / min(self.settings.callers, self.settings.slots * self.settings.replicas)

    @property
    def is_as_expected(self) -> bool:
        """Whether what has to hold does."""
        return self.share >= LEAST_SHARE


class SaturatedMesh:
    """One simulation."""

    def __init__(self, settings: SaturationSettings) -> None:
        self.settings = settings
        self.places, self.load_time = settings.places, settings.load_time
        self.services = stream(settings.seed, "services")
        shares = list(accumulate(1.0 / rank**settings.exponent for rank in range(1, settings.models + 1)))
        draws = stream(settings.seed, "models")
        self.model_of = [bisect_left(shares, draws.random() * shares[-1]) for _ in range(settings.calls)]
        """By call."""
        self._warm_up = int(settings.calls * _WARM_UP)
        self._loads = self._began = self._ended = 0.0
        ledger = NotifyingLedger(settings.slots * settings.replicas, self._settled)
        self._wired = WiredMesh(settings, lambda replica, call: self._models[replica].serve(call), ledger)
        self.kernel, self._ledger = self._wired.kernel, ledger
        self._models = [ReplicaModels(self, links) for links in self._wired.links]

    def run(self) -> SaturationFigures:
        """Until each call has its outcome.

        Raises:
            Violation: a core broke a promise.
        """
        for _ in range(self.settings.callers):
            self.kernel.at(0.0, self._call, None)
        self.kernel.run(lambda: False)
        self._ledger.check()
        measured = self.settings.calls - self._warm_up
        return SaturationFigures(
            settings=self.settings,
            rate=measured / (self._ended - self._began),
            loads=round(sum(each.loads for each in self._models) - self._loads),
            p99=quantile(sorted(self._ledger.waited[self._warm_up :]), 0.99),
        )

    def _call(self, _: None) -> None:
        call = len(self._ledger.arrived)
        if call == self.settings.calls:
            return
        if call == self._warm_up:
            self._began, self._loads = self.kernel.now, sum(each.loads for each in self._models)
        options = RouterCallOptions(model_id=f"model {self.model_of[call]}")
        self._wired.call(call % self.settings.routers, options)

    def _settled(self, _call: int) -> None:
        self._ended = self.kernel.now
        self.kernel.at(self.kernel.now, self._call, None)


def settings(*, is_quick: bool) -> list[SaturationSettings]:
    """What is simulated."""
    if is_quick:
        return [SaturationSettings(calls=6_000)]
    alone = [SaturationSettings(callers=each, exponent=law) for law in (1.0, 0.0) for each in (16, 24, 48, 100)]
    return [*alone, *(SaturationSettings(callers=each, routers=3) for each in (24, 100))]


def table(figures: Sequence[SaturationFigures]) -> str:
    """A line for each mesh."""
    first = figures[0].settings
    conditions = (
        f"{first.models} models, {first.replicas} replicas with {first.places} places and {first.slots} slots, loads "
        f"of {first.load_time:g} service times."
    )
    lines = [conditions, "callers  Zipf  routers  calls a service time  of what is possible  loads  wait p99"]
    for it in figures:
        given = it.settings
        lines.append(
            f"{given.callers:7}  {given.exponent:4.1f}  {given.routers:7}  {it.rate:20.1f}  {it.share:19.0%}  "
            f"{it.loads:5,}  {it.p99:8.2f} {'✓' if it.is_as_expected else '✗'}"
        )
    return "\n".join(lines)
