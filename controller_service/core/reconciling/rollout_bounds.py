"""How many replicas a rollout may add or miss, by the settings and by the devices that are free; and which leave first.

Pure.
"""

from __future__ import annotations

from math import ceil

from controller_service.core.observed.state import ObservedReplica
from slotmesh.spec.model import Backend


def max_surge_of(backend: Backend, wanted: int) -> int:
    """Replicas beyond those wanted that may run."""
    return max(1, ceil(wanted / 4)) if backend.max_surge is None else backend.max_surge


def max_unavailable_of(backend: Backend) -> int:
    """By how many the ready replicas may be short."""
    if backend.max_unavailable is None:
        return 1 if backend.max_surge == 0 else 0
    return backend.max_unavailable


def rollout_bounds(backend: Backend, wanted: int, staying: int, room: int | None) -> tuple[int, int]:
    """How many replicas beyond those wanted may run, and by how many the ready ones may be short.

    `room`: for how many more than `staying` there are devices; None: they want none. If none is spare, a replica stops
    before one starts, unless `max_unavailable` is 0: then the start waits for a device.
    """
    surge, unavailable = max_surge_of(backend, wanted), max_unavailable_of(backend)
    if room is None or backend.max_unavailable == 0:
        return surge, unavailable
    surge = min(surge, max(0, staying + room - wanted))
    return surge, unavailable or (0 if surge else 1)


def most_dispensable_first(replica: ObservedReplica) -> tuple[bool, int, float, str]:
    """The order in which old replicas leave: unhealthy ones, then those with low ranks.

    The next replica gets the lowest free rank, so ranks beyond the number end with this rollout.
    """
    rank = -1 if replica.rank is None else replica.rank
    return not replica.is_unhealthy, rank, replica.started_at, replica.replica_id
