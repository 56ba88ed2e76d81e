"""What a policy of one's own decides by: how many replicas a backend should have.

    def nightly(figures: slotmesh.autoscaling.ScaleFigures) -> int:
        return 4 if 1 <= datetime.now(UTC).hour < 5 else math.ceil(figures.load / 8)

The controller names it at its start (`--autoscale-policies my_policies:nightly`), a backend in its `autoscale`. It is
called each second, in a thread: one call at a time for a backend, while calls for other backends may overlap. Bounds,
delays and rates of the backend hold for what it says, too. Pure.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleFigures:
    """What is known of a backend at one moment."""

    number: int
    """Replicas that should run, as it was decided last."""
    ready: int
    """Replicas that take calls."""
    starting: int
    """Replicas that may take calls soon."""
    permits: int
    """Calls that the ready ones execute at once."""
    queued: int
    """Calls that wait at routers."""
    ongoing: int
    """Calls at replicas."""
    queue_time_s: float
    """How long what waits at a router will have to wait until all of it was sent; of all routers the longest."""
    sent: int
    """Counts up with calls that are sent to replicas. It may jump when routers come and go."""
    routers: int
    """Routers that are attached. The figures are sums over them."""
    late: int
    """Of these, those whose newest report is old: what it says counts until the router is gone."""
    silent: int
    """Of these, those that have not reported yet: what they have is not in the figures."""

    @property
    def load(self) -> int:
        """Calls that wait or run."""
        return self.queued + self.ongoing

    @property
    def is_complete(self) -> bool:
        """Whether no router is missing: what is not in the figures is not there."""
        return self.routers > 0 and not self.silent


ScalePolicy: TypeAlias = Callable[[ScaleFigures], int]
"""Says how many replicas a backend should have."""
