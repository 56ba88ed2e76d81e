"""The load of a backend, summed over routers, beside its replicas.

Invariants: what a router reported last counts until the router is gone, however old it is; a router that has not
reported is missing, which is not the same as having no load.
Owner: pure functions, for `shell.autoscaler`.
"""

from __future__ import annotations

from typing import Final

from controller_service.core.observed import Observed
from controller_service.core.reconcile_endpoints import is_coming
from slotmesh.autoscaling import ScaleFigures

LATE_AFTER_S: Final = 2.5
"""A router whose newest report is older is late: reports are a second apart."""


def figures_of(backend: str, observed: Observed, number: int, now: float) -> ScaleFigures:
    """`number` is how many replicas should run, as it was decided last."""
    replicas = [*observed.replicas(backend)]
    ready = [replica for replica in replicas if replica.takes_calls]
    routers = observed.routers.values()
    reported = [router.reported_at for router in routers if router.reported_at is not None]
    loads = [load for router in routers for load in router.loads if load.backend == backend]
    return ScaleFigures(
        number=number,
        ready=len(ready),
        starting=sum(map(is_coming, replicas)),
        permits=sum(replica.max_ongoing for replica in ready),
        queued=sum(load.queued for load in loads),
        ongoing=sum(load.ongoing for load in loads),
        queue_time_s=max((load.queue_time_s for load in loads), default=0.0),
        sent=sum(load.sent for load in loads),
        routers=len(routers),
        late=sum(now - at > LATE_AFTER_S for at in reported),
        silent=len(routers) - len(reported),
    )
