"""How many replicas of a backend should run, and how many do.

Owner: pure functions.
"""

from __future__ import annotations

from controller_service.core.observed import Observed, ReplicaState
from slotmesh.spec.model import Backend


def wanted_replicas(backend: Backend, observed: Observed) -> int:
    """How many replicas should run where the controller launches them: as its settings say, or as its load asks for.

    Before the first look at the load, those that run stay.
    """
    if backend.autoscale is not None:
        scale = observed.scales.get(backend.name)
        return max(backend.least_replicas, running_replicas(backend.name, observed)) if scale is None else scale.number
    return backend.least_replicas


def running_replicas(backend: str, observed: Observed) -> int:
    """How many run or start, as far as is known, and were not told to end."""
    return sum(
        replica.state in {ReplicaState.STARTING, ReplicaState.READY}
        and not (replica.gone or replica.is_told_to_drain or replica.is_given_up)
        for replica in observed.replicas(backend)
    )
