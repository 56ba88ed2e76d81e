"""What has to hold: bounds on figures, under the conditions for which they were set."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from simulation.queues.settings import QueuesSettings

if TYPE_CHECKING:
    from simulation.queues.figures import Figures


@dataclass(frozen=True, slots=True)
class Bounds:
    """Upper bounds."""

    p99: float
    """Of the queue time, mean service times."""
    refusals: float
    """A call."""

    def hold(self, figures: Figures) -> bool:
        """Whether the figures keep to them, and no call failed."""
        return figures.p99 <= self.p99 and figures.refusals <= self.refusals and not figures.failed

    def __str__(self) -> str:
        return f"p99 ≤ {self.p99:g}, refusals ≤ {self.refusals:g}"


_BOUNDS = {8: Bounds(p99=0.3, refusals=0.5), 1: Bounds(p99=0.8, refusals=0.5)}
"""By the slots of a replica."""


def bounds(settings: QueuesSettings) -> Bounds | None:
    """The bounds for these settings, where there are any: how long is measured, and by which seed, does not matter."""
    conditions = QueuesSettings(slots=settings.slots, balancer="least_loaded")
    measured = replace(settings, calls=conditions.calls, warm_up=conditions.warm_up, seed=conditions.seed)
    return _BOUNDS.get(settings.slots) if measured == conditions else None
