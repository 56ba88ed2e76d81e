"""A backend whose replicas come and go: calls that wait and run, replicas that start and end, reports each second.

What decides is the real core of the controller (`core.autoscaling`); callers, queue and replicas are a model of it, in
steps of 10 ms. Routers report with what they had at that time, each at its own moment of the second.
Invariants: the same seed gives the same curve.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from controller_service.core.observed.state import BackendScale
from controller_service.core.reconciling.autoscaling import choose, first_scale, need_of
from slotmesh.autoscaling import ScaleFigures
from slotmesh.spec.model import Autoscale

STEP_S: Final = 0.01
"""Virtual time goes on by this."""
ROUTERS: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoscalingScenario:
    """What happens, and what replicas are like."""

    name: str
    title: str
    rules: Autoscale
    seconds: int
    concurrency: Callable[[float], float] = lambda _: 0.0
    """Callers at a time, who make one call after another."""
    rate: Callable[[float], float] = lambda _: 0.0
    """Calls a second at a time, whatever becomes of those before."""
    service_s: float = 0.2
    """Mean time of a call; its times are exponential."""
    permits: int = 8
    """Calls that a replica executes at once."""
    start_s: float = 3.0
    """Until a replica that was started takes calls."""
    silence: tuple[float, float] = (0.0, 0.0)
    """Between these times one of the routers reports nothing."""


@dataclass(slots=True)
class Curve:
    """What was, second by second."""

    load: list[int] = field(default_factory=list[int])
    """Calls that wait or run."""
    wanted: list[int] = field(default_factory=list[int])
    """Replicas that should run."""
    ready: list[int] = field(default_factory=list[int])
    """Replicas that take calls."""
    decisions: list[str] = field(default_factory=list[str])
    """Each change, with its time and reason."""
    first_wait_s: float | None = None
    """How long the first call took to be begun."""


class ScaledMesh:
    """One run of a scenario."""

    def __init__(self, scenario: AutoscalingScenario, seed: int) -> None:
        self.curve = Curve()
        self._scenario = scenario
        self._chance = random.Random(seed)
        self._now = 0.0
        self._arrived: list[float] = []
        """When each call that waits came."""
        self._ends: list[float] = []
        """When each call that runs will end."""
        self._ready_at: list[float] = [-1.0] * scenario.rules.min
        """Of each replica that was started and not asked to end."""
        self._sent = 0
        self._reported: list[tuple[int, int, int]] = [(0, 0, 0)] * ROUTERS
        """What each router said last: calls that wait, that run, and that were sent."""
        self._reports_at = [self._chance.random() for _ in range(ROUTERS)]
        self._scale: BackendScale = first_scale(scenario.rules, self._figures(scenario.rules.min), 0.0)

    def run(self) -> Curve:
        """To the end of the scenario."""
        for step in range(round(self._scenario.seconds / STEP_S)):
            self._now = step * STEP_S
            self._come_and_go()
            had_none = not self._scale.number and bool(self._arrived)
            for router in range(ROUTERS):
                self._report(router, at_once=had_none)
            if step % round(1 / STEP_S) == 0 or had_none:
                self._look()
            if step % round(1 / STEP_S) == 0:
                self.curve.load.append(len(self._arrived) + len(self._ends))
                self.curve.wanted.append(self._scale.number)
                self.curve.ready.append(self._ready)
        return self.curve

    @property
    def _ready(self) -> int:
        return sum(at <= self._now for at in self._ready_at)

    def _come_and_go(self) -> None:
        scenario, now = self._scenario, self._now
        self._ends = [at for at in self._ends if at > now]
        missing = round(scenario.concurrency(now)) - len(self._ends) - len(self._arrived)
        mean = scenario.rate(now) * STEP_S
        came = math.floor(mean) + (self._chance.random() < mean % 1.0)
        self._arrived += [now] * (max(0, missing if scenario.concurrency(now) else 0) + came)
        begun = min(len(self._arrived), max(0, self._ready * scenario.permits - len(self._ends)))
        if begun and self.curve.first_wait_s is None:
            self.curve.first_wait_s = now - self._arrived[0]
        self._ends += [now + self._chance.expovariate(1.0 / scenario.service_s) for _ in range(begun)]
        self._sent += begun
        del self._arrived[:begun]

    def _report(self, router: int, *, at_once: bool) -> None:
        first, last = self._scenario.silence
        if router == 0 and first <= self._now < last:
            return
        if at_once or self._now >= self._reports_at[router]:
            share = (self._part(len(self._arrived), router), self._part(len(self._ends), router))
            self._reported[router] = (*share, self._part(self._sent, router))
            self._reports_at[router] = max(self._reports_at[router], self._now) + (not at_once) * 1.0

    def _part(self, calls: int, router: int) -> int:
        """Calls are spread evenly over routers."""
        return (calls + router) // ROUTERS

    def _figures(self, number: int) -> ScaleFigures:
        queued, ongoing, sent = (sum(column) for column in zip(*self._reported, strict=True))
        ready = self._ready
        return ScaleFigures(
            number=number,
            ready=ready,
            starting=len(self._ready_at) - ready,
            permits=ready * self._scenario.permits,
            queued=queued,
            ongoing=ongoing,
            queue_time_s=queued * self._scenario.service_s / max(1, ready * self._scenario.permits),
            sent=sent,
            routers=ROUTERS,
            late=0,
            silent=0,
        )

    def _look(self) -> None:
        rules, before = self._scenario.rules, self._scale.number
        figures = self._figures(before)
        self._scale = choose(self._scale, rules, need_of(rules, figures), figures, self._now, started_at=float("-inf"))
        number = self._scale.number
        if number != before:
            self.curve.decisions.append(f"{self._now:7.2f} s  {before:3} -> {number:3}  {self._scale.latest.why}")
        self._ready_at += [self._now + self._scenario.start_s] * (number - len(self._ready_at))
        self._ready_at = sorted(self._ready_at)[:number]
