"""Pieces of the router's core, as the scheduler would make them."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from router_service.core.callers import Caller, Window
from router_service.core.calls import CallOptions
from router_service.core.counters import BackendCounts
from router_service.core.replicas.capacity import Capacity
from router_service.core.replicas.replica import Replica
from router_service.core.routing.backends import Backend
from router_service.core.routing.table import BackendRoute, ReplicaRoute
from router_service.core.runs import Run
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
) -> Run:
    """A run of `count` calls of `size` bytes, with ids from `first` on."""
    payloads = [b"x" * size] * count
    return Run(seq, by, "e", CallOptions(**options), range(first, first + count), payloads, arrived)


def backend(**settings: Any) -> Backend[Replica]:
    """A backend without replicas."""
    return Backend(BackendRoute(settings=model.Backend(name="b", **settings)), BackendCounts(), chance())


def replica(name: str = "r", max_ongoing: int = 10, of: Backend[Replica] | None = None, **capacity: Any) -> Replica:
    """A replica that is linked."""
    each = Replica(ReplicaRoute(key=(name, "life"), address="", max_ongoing=max_ongoing), of or backend())
    each.linked = True
    each.capacity = Capacity(max_ongoing=max_ongoing, **capacity)
    each.refresh()
    return each
