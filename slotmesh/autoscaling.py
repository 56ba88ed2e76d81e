"""The input of an autoscaling policy of one's own: a function that returns how many replicas a backend should have.

    def nightly(figures: slotmesh.autoscaling.ScaleFigures) -> int:
        return 4 if 1 <= datetime.now(UTC).hour < 5 else math.ceil(figures.load / 8)

The controller loads it at its start (`--autoscale-policies my_policies:nightly`), a backend names it in its
`autoscale`. It is called each second, in a thread: one call at a time for a backend, while calls for other backends may
overlap. The bounds, delays and rates of the backend apply to its result, too. Pure.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleFigures:
    """The state of a backend at one moment."""

    number: int
    """Replicas that should run, by the last decision."""
    ready: int
    """Replicas that take calls."""
    starting: int
    """Replicas that may take calls soon."""
    permits: int
    """Calls that the ready ones execute concurrently."""
    queued: int
    """Calls that wait at routers."""
    ongoing: int
    """Calls at replicas."""
    queue_time_s: float
    """How long the calls that wait at a router will wait until all of them were sent; the longest of all routers."""
    sent: int
    """Counts up with calls that are sent to replicas. It may jump when routers come and go."""
    routers: int
    """Routers that are attached. The figures are sums over them."""
    late: int
    """Of these, those whose newest report is old: it counts until the router disconnects."""
    silent: int
    """Of these, those that have not reported yet: their calls are not in the figures."""

    @property
    def load(self) -> int:
        """Calls that wait or run."""
        return self.queued + self.ongoing

    @property
    def is_complete(self) -> bool:
        """Whether every router has reported, so that the figures are complete."""
        return self.routers > 0 and not self.silent


ScalePolicy: TypeAlias = Callable[[ScaleFigures], int]
"""Returns how many replicas a backend should have."""
