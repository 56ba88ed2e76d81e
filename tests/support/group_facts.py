"""What an observed state says of all its replicas, compared with a look at each of them."""

from __future__ import annotations

from controller_service.core.desired.state import Desired
from controller_service.core.observed.state import Observed
from controller_service.core.reconciling.routes import RouteBuilder, build_routes


def require_facts(observed: Observed, endpoint: str) -> None:
    """Raises AssertionError where what groups of replicas keep is not what these say."""
    there = [*observed.replicas()]
    living = [it for it in there if not it.gone]
    unresolved = [it for it in observed.unresolved.values() if not it.gone]
    assert observed.must_fence_through() == max((it.must_fence_through for it in [*living, *unresolved]), default=0)
    assert observed.has_unfenced() == any(not it.is_fenced for it in there)
    assert observed.awaits_fence() == any(not it.is_fenced and it.suspect_since is None for it in living)
    busy = {(it.owner, number) for it in living for number in it.busy.get(endpoint, ())}
    assert observed.busy_partitions(endpoint) == busy
    assert {it.replica_id: it.backend for it in there} == dict(observed.backend_of)
    assert len(observed.backend_of) == len(there)


def require_same_routes(builder: RouteBuilder, desired: Desired, observed: Observed) -> None:
    """Raises AssertionError where routes that are built on those before are others than these."""
    assert builder.build(desired, observed, launches=False) == build_routes(desired, observed)
