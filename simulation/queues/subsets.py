"""Routers that link to a part of the replicas, compared with routers that link to all: queue times, links, tables.

What has to hold: with subsets, the 99th percentile of queue times is at most 1.3 times that of routers that link to
all, and no router has more links than its subset is large.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from router_service.core.events import TableReceived
from router_service.core.routing_table import BackendRoute, EndpointRoute, ReplicaRoute, RoutingTable
from router_service.core.scheduler import RouterScheduler
from simulation.queues.report import QueuesOutcome
from simulation.queues.settings import QueuesSettings
from slotmesh.spec.model import Backend

LARGEST_RATIO: Final = 1.3
LEAST_P99: Final = 0.04
"""Mean service times. Smaller quantiles count as this: it is the way to a replica and back."""
LOADS: Final = (0.5, 0.7, 0.8, 0.9)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two meshes that differ in nothing but their links."""

    subset: QueuesOutcome
    all: QueuesOutcome

    @property
    def ratio(self) -> float:
        """Of the 99th percentiles of queue times."""
        return max(LEAST_P99, self.subset.figures.p99) / max(LEAST_P99, self.all.figures.p99)

    @property
    def is_as_expected(self) -> bool:
        """Whether what has to hold does, and no call failed."""
        has_failed = self.subset.figures.failed or self.all.figures.failed
        return self.ratio <= LARGEST_RATIO and self.subset.links <= self.subset.settings.subset_size and not has_failed


def settings(*, is_quick: bool) -> list[QueuesSettings]:
    """Each mesh with subsets."""
    if is_quick:
        return [QueuesSettings(routers=20, replicas=400, subset_size=40, load=0.9, calls=5_000, warm_up=1.0)]
    large = QueuesSettings(routers=100, replicas=10_000, subset_size=200, calls=50_000, warm_up=2.0)
    return [replace(large, load=load) for load in LOADS]


def simulate(
    compared: Sequence[QueuesSettings], simulated: Callable[[QueuesSettings], QueuesOutcome]
) -> list[Comparison]:
    """Each with subsets, and with links to all replicas."""
    return [Comparison(simulated(each), simulated(replace(each, subset_size=0))) for each in compared]


def table(compared: Sequence[Comparison]) -> str:
    """A line for each."""
    first = compared[0].subset.settings
    conditions = f"{first.routers} routers, {first.replicas:,} replicas with {first.slots} slots, {first.calls:,} calls"
    lines = [
        f"{conditions}; queue times in mean service times",
        "load  links     p50     p99  refusals   links to all     p50     p99  refusals   ratio of p99",
    ]
    for each in compared:
        few, many = each.subset.figures, each.all.figures
        lines.append(
            f"{each.subset.settings.load:4.0%}  {each.subset.links:5}  {few.p50:6.3f}  {few.p99:6.3f}  "
            f"{few.refusals:8.3f}   {each.all.links:12}  {many.p50:6.3f}  {many.p99:6.3f}  {many.refusals:8.3f}   "
            f"{each.ratio:.2f} {'✓' if each.is_as_expected else '✗'}"
        )
    return "\n".join(lines)


def table_costs(mesh: QueuesSettings) -> str:
    """What the routing table costs a router: seconds of this machine."""
    replicas = [
        ReplicaRoute(
            key=(f"replica-{number}", f"{number:032x}"),
            address=f"10.0.{number >> 8}.{number & 255}:7072",
            max_ongoing=8,
        )
        for number in range(mesh.replicas)
    ]
    addresses = [f"10.1.0.{number}:7071" for number in range(mesh.routers)]
    backend = BackendRoute(settings=Backend(name="backend"), replicas=replicas)
    endpoints = {"endpoint": EndpointRoute(name="endpoint", weights={"backend": 1.0})}
    first = RoutingTable(revision=1, endpoints=endpoints, backends={"backend": backend}, router_addresses=addresses)
    less = replace(first, revision=2, backends={"backend": replace(backend, replicas=replicas[1:])})
    router = RouterScheduler(lambda: 0.5, subset_size=mesh.subset_size)
    times = [time.perf_counter()]
    for table in (first, less):
        router.step(TableReceived(table, addresses[0]), 0.0)
        times.append(time.perf_counter())
    return (
        f"A router applies a table of {mesh.replicas:,} replicas in {times[1] - times[0]:.3f} s, and one with a "
        f"replica less in {times[2] - times[1]:.3f} s."
    )
