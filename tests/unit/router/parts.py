"""Pieces of the router's core, as the scheduler would make them."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from router_service.core.callers import Window
from router_service.core.calls import RouterCallOptions
from router_service.core.counters import BackendCounts
from router_service.core.limits.capacity import ReportedCapacity
from router_service.core.replicas.backends import RoutedBackend
from router_service.core.replicas.replica import RoutedReplica
from router_service.core.routing_table import BackendRoute, ReplicaRoute
from router_service.core.runs import Caller, RouterRun
from slotmesh.spec import model


def chance(seed: int = 0) -> Callable[[], float]:
    """Uniform in [0, 1), the same at each run of the tests."""
    return random.Random(seed).random


def caller() -> Caller:
    """A caller with a flow of its own, whose window is of no concern."""
    return Caller(Window(calls=10**9, bytes=10**12))


NOBODY = caller()


def run(
    seq: int = 1,
    count: int = 1,
    *,
    first: int = 1,
    size: int = 1,
    by: Caller = NOBODY,
    arrived: float = 0.0,
    **options: Any,
) -> RouterRun:
    """A run of `count` calls of `size` bytes, with ids from `first` on."""
    payloads = [b"x" * size] * count
    return RouterRun(seq, by, "e", RouterCallOptions(**options), range(first, first + count), payloads, arrived)


def backend(**settings: Any) -> RoutedBackend[RoutedReplica]:
    """A backend without replicas."""
    return RoutedBackend(BackendRoute(settings=model.Backend(name="b", **settings)), BackendCounts({"e"}), chance())


def replica(
    name: str = "r", max_ongoing: int = 10, of: RoutedBackend[RoutedReplica] | None = None, **capacity: Any
) -> RoutedReplica:
    """A replica that is linked."""
    each = RoutedReplica(ReplicaRoute(key=(name, "life"), address="", max_ongoing=max_ongoing), of or backend())
    each.linked = True
    each.capacity = ReportedCapacity(max_ongoing=max_ongoing, **capacity)
    each.refresh()
    return each
