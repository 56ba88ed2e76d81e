"""Looks at a backend's load, as a test says it is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from controller_service.core.reconciling.autoscaling import PolicyAnswer, choose, first_scale, need_of
from slotmesh.autoscaling import ScaleFigures
from slotmesh.spec.model import Autoscale

STARTED_AT = -1_000.0
"""When the controller started: long ago."""
QUIET = ScaleFigures(
    number=0,
    ready=0,
    starting=0,
    permits=0,
    queued=0,
    ongoing=0,
    queue_time_s=0.0,
    sent=0,
    routers=1,
    late=0,
    silent=0,
)


class ScaledBackend:
    """A backend whose replicas are ready as soon as they should run, unless a test says otherwise."""

    def __init__(self, rules: Autoscale, running: int = 0, *, started_at: float = STARTED_AT) -> None:
        self.rules = rules
        self.now = 0.0
        self.started_at = started_at
        self.scale = first_scale(rules, replace(QUIET, number=running), 0.0)

    def look(
        self,
        load: int = 0,
        *,
        after: float = 1.0,
        ready: int | None = None,
        answer: PolicyAnswer | None = None,
        **figures: Any,
    ) -> int:
        """The number after one look; `load` are calls that run."""
        self.now += after
        number = self.scale.number
        is_ready = number if ready is None else ready
        said: dict[str, Any] = {"ongoing": load, "permits": 8 * is_ready, **figures}
        known = replace(QUIET, number=number, ready=is_ready, starting=max(0, number - is_ready), **said)
        need = need_of(self.rules, known, answer)
        self.scale = choose(self.scale, self.rules, need, known, self.now, started_at=self.started_at)
        return self.scale.number

    @property
    def why(self) -> str:
        return self.scale.latest.why


def looks(backend: ScaledBackend, load: int, seconds: int) -> list[int]:
    """The numbers of so many looks, a second apart."""
    return [backend.look(load) for _ in range(seconds)]
