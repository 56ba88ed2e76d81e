"""What is measured, under which name, and what is expected of it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Final

import slotmesh
from benchmarks import workloads
from benchmarks.workloads import (
    ENDPOINT,
    MAP_CALLS,
    MAPS_IN_FLIGHT,
    METHOD,
    STREAM_IN_FLIGHT,
    UNARY_IN_FLIGHT,
    Workload,
)
from slotmesh.codec import OCTET_STREAM
from slotmesh.v1.router_service_pb2_grpc import RouterServiceStub

BASELINE: Final = "bare"


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogueEntry:
    """One line of the table."""

    name: str
    """Stable, for scripts."""
    title: str
    run: Workload
    target: float | None = None
    """Times the bare server's calls a second, at least."""


def entries(bare: RouterServiceStub, router: RouterServiceStub, mesh: slotmesh.Mesh) -> list[CatalogueEntry]:
    """Everything that one round measures, the baseline first."""
    echo = mesh.endpoint(ENDPOINT).options(content_type=OCTET_STREAM)
    unkeyed = echo.method(METHOD)
    lane = echo.ordered("one").method(METHOD)
    lanes = [echo.ordered(f"key-{i}").method(METHOD) for i in range(STREAM_IN_FLIGHT)]
    futures = workloads.futures
    return [
        CatalogueEntry(
            name=BASELINE,
            title=f"bare grpc.aio server, unary, {UNARY_IN_FLIGHT} in flight",
            run=partial(workloads.unary, bare, UNARY_IN_FLIGHT),
        ),
        CatalogueEntry(
            name="ordered",
            title=f"ordered stream: one key, {STREAM_IN_FLIGHT} in flight",
            run=partial(futures, [lane], STREAM_IN_FLIGHT),
            target=50,
        ),
        CatalogueEntry(
            name="unkeyed",
            title=f"stream without keys, {STREAM_IN_FLIGHT} in flight",
            run=partial(futures, [unkeyed], STREAM_IN_FLIGHT),
            target=50,
        ),
        CatalogueEntry(
            name="keys",
            title=f"ordered stream: {len(lanes)} keys, one call each in flight",
            run=partial(futures, lanes, STREAM_IN_FLIGHT),
            target=20,
        ),
        CatalogueEntry(
            name="map",
            title=f"map: lists of {MAP_CALLS:,}, {MAPS_IN_FLIGHT} in flight (latency: a list)",
            run=partial(workloads.maps, unkeyed),
            target=100,
        ),
        CatalogueEntry(
            name="unary",
            title=f"unary Call through the router, {UNARY_IN_FLIGHT} in flight",
            run=partial(workloads.unary, router, UNARY_IN_FLIGHT),
            target=0.72,
        ),
        CatalogueEntry(name="single", title="stream, one call at a time", run=partial(futures, [unkeyed], 1)),
    ]
