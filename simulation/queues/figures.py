"""What a simulation has to say: how long calls waited, and what that cost."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from simulation.ledger import Counted
    from simulation.queues.settings import QueuesSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Times in mean service times. A function of the settings: nothing here depends on the machine."""

    calls: int
    """Measured calls that ran."""
    failed: int
    """Calls whose outcome was a failure, measured or not."""
    mean: float
    p50: float
    p99: float
    longest: float
    refusals: float
    """A call."""
    pushes: float
    """Capacity frames a call."""
    idle_while_queued: float
    """Share of all slots × time that was idle while a call waited in some router."""
    wasted: float
    """Share of the waiting in routers for which there was an idle slot somewhere."""
    events: int
    """Events that happened, warm-up included."""


def summarise(settings: QueuesSettings, waited: Sequence[float], failed: int, counted: Counted, events: int) -> Figures:
    """Sums up. `waited`: a queue time a measured call, negative where it never ran."""
    times = sorted(time for time in waited if time >= 0.0)
    slots = settings.replicas * settings.slots
    return Figures(
        calls=len(times),
        failed=failed,
        mean=sum(times) / max(1, len(times)),
        p50=quantile(times, 0.5),
        p99=quantile(times, 0.99),
        longest=times[-1] if times else 0.0,
        refusals=counted.refusals / settings.calls,
        pushes=counted.pushes / settings.calls,
        idle_while_queued=counted.idle_while_queued / (slots * counted.time),
        wasted=counted.wasted / counted.queued if counted.queued else 0.0,
        events=events,
    )


def quantile(times: Sequence[float], share: float) -> float:
    """The smallest of the ascending times that `share` of them do not exceed; 0 where there are none."""
    if not times:
        return 0.0
    return times[max(0, ceil(share * len(times)) - 1)]
