"""Whether replicas of a backend without a ready one are on their way.

Purpose: routers let calls wait for replicas that are starting, and fail them at once where none is (docs/traffic.md).
Invariants: unknown is not no: where somebody else starts replicas, one that was never seen may come. A backend whose
replicas fail to start is failing until one gets ready or its settings change, also while the next one is tried: calls
that came during a try would wait for nothing.
Owner: pure functions.
"""

from __future__ import annotations

from collections.abc import Collection

from controller_service.core.desired import Desired
from controller_service.core.observed import Observed, ObservedReplica, Restarts
from controller_service.core.reconcile_endpoints import has_failed_to_start, is_coming
from controller_service.core.replica_numbers import wanted_replicas
from controller_service.core.templates import template_of
from slotmesh.spec.prospect import Prospect


def find_prospect(name: str, desired: Desired, observed: Observed, *, launches: bool) -> Prospect:
    """What becomes of a backend, given that none of its replicas is ready.

    `launches`: whether this controller starts replicas.
    """
    backend = desired.backends.get(name)
    if backend is None:
        return Prospect.NONE
    replicas = [*observed.replicas(name)]
    coming = [replica for replica in replicas if is_coming(replica)]
    if not launches:
        return _of_others(replicas, coming, wanted_replicas(backend, observed))
    if not wanted_replicas(backend, observed):
        # A call that waits has one started, where the number follows the load; a failure of long ago says nothing.
        return Prospect.NONE if backend.autoscale is None else Prospect.COMING
    template = template_of(backend)
    if not any(has_failed_to_start(it) and it.template == template for it in replicas):
        return Prospect.COMING
    # Those that were started after the newest death are tries in place of what has failed.
    counted_at = observed.restarts.get(name, Restarts()).counted_at
    is_first_try = any(it.template == template and it.started_at < counted_at for it in coming)
    return Prospect.COMING if is_first_try else Prospect.FAILING


def _of_others(replicas: Collection[ObservedReplica], coming: Collection[ObservedReplica], wanted: int) -> Prospect:
    """Where somebody else starts replicas: it fails where all that should run have failed."""
    if coming:
        return Prospect.COMING
    failed = [replica for replica in replicas if has_failed_to_start(replica)]
    return Prospect.FAILING if len(failed) >= max(1, wanted) else Prospect.UNKNOWN
