"""What metrics cost the router: its processor time a call with them, scraped every second, and without.

Two routers stand side by side before the same replica, one with a metrics endpoint and one without; rounds alternate,
and what counts is the ratio within a pair of rounds. Two processes of the same program differ by a few per cent for
their whole life, by where their memory happens to lie; so there are several pairs of processes, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from statistics import median
from typing import Final

import slotmesh
from benchmarks import findings, workloads
from benchmarks.findings import Finding
from benchmarks.processes import ProcessMesh, Server, process_mesh
from benchmarks.progress import show
from benchmarks.statistics import Sample
from benchmarks.workloads import ENDPOINT, METHOD, STREAM_IN_FLIGHT, UNARY_IN_FLIGHT
from slotmesh.codec import OCTET_STREAM
from slotmesh.runtime.channels import open_channel
from slotmesh.spec.model import Backend, Endpoint, Mesh, TrafficPolicy
from slotmesh.v1.router_service_pb2_grpc import RouterServiceStub

MOST_COST: Final = 0.05
SCRAPE_EVERY_S: Final = 1.0
_WARM_UP_S: Final = 0.3

SPEC: Final = Mesh(
    backends=(Backend(name=ENDPOINT, handler="benchmarks.handler:Echo"),),
    endpoints=(Endpoint(name=ENDPOINT, traffic=TrafficPolicy(weights={ENDPOINT: 1.0})),),
)

Load = Callable[[float], Awaitable[Sample]]


async def measure(*, processes: int, rounds: int, seconds: float) -> list[Finding]:
    """`processes` pairs of routers, `rounds` pairs of rounds each, of `seconds` for each load and router."""
    ratios: dict[str, list[float]] = {"stream": [], "unary": []}
    cost_s: dict[str, list[float]] = {"stream": [], "unary": []}
    async with process_mesh(SPEC, routers=0) as mesh:
        for process in range(processes):
            async with _pair(mesh) as (loaded, plain):
                for number in range(rounds):
                    show(f"metrics: round {process * rounds + number + 1} of {processes * rounds}")
                    order = (loaded, plain) if number % 2 else (plain, loaded)
                    for load, of_load in ratios.items():
                        taken = {each: await each.cpu_a_call_s(load, seconds) for each in order}
                        of_load.append(taken[loaded] / taken[plain])
                        cost_s[load].append(taken[plain])
    show("")
    return [
        finding
        for load, title in (("stream", f"stream, {STREAM_IN_FLIGHT} in flight"), ("unary", "unary calls"))
        for finding in (
            findings.told(
                f"metrics_{load}_cpu",
                f"router's processor time a call, {title}",
                median(cost_s[load]),
                findings.microseconds,
            ),
            findings.at_most(
                f"metrics_{load}", "more of it with metrics", median(ratios[load]) - 1, MOST_COST, findings.share
            ),
        )
    ]


class _Router:
    """A router, and the loads that are put on it."""

    def __init__(self, server: Server, unary: RouterServiceStub, mesh: slotmesh.Mesh) -> None:
        self._server = server
        method = mesh.endpoint(ENDPOINT).options(content_type=OCTET_STREAM).method(METHOD)
        self._loads: dict[str, Load] = {
            "stream": partial(workloads.futures, [method], STREAM_IN_FLIGHT),
            "unary": partial(workloads.unary, unary, UNARY_IN_FLIGHT),
        }

    async def warm_up(self) -> None:
        for load in self._loads.values():
            await load(_WARM_UP_S)

    async def cpu_a_call_s(self, load: str, seconds: float) -> float:
        """Processor time of the router for each call of a load."""
        before = self._server.cpu_s()
        sample = await self._loads[load](seconds)
        return (self._server.cpu_s() - before) / sample.calls


@asynccontextmanager
async def _pair(mesh: ProcessMesh) -> AsyncIterator[tuple[_Router, _Router]]:
    """A router with metrics that is scraped, and one without."""
    servers = [await mesh.add_router("--metrics-port=0"), await mesh.add_router("--metrics-port=-1")]
    await mesh.wait_ready()
    scraping = asyncio.ensure_future(_scrape(mesh, servers[0]))
    try:
        async with AsyncExitStack() as stack:
            routers = []
            for server in servers:
                channel = await stack.enter_async_context(open_channel(server.address))
                client = await stack.enter_async_context(slotmesh.connect(server.address))
                routers.append(_Router(server, RouterServiceStub(channel), client))
                await routers[-1].warm_up()
            yield routers[0], routers[1]
    finally:
        scraping.cancel()
        with suppress(asyncio.CancelledError):
            await scraping
        for server in servers:
            await mesh.remove_router(server)


async def _scrape(mesh: ProcessMesh, router: Server) -> None:
    """As Prometheus does, only more often."""
    while True:
        await mesh.scrape(router)
        await asyncio.sleep(SCRAPE_EVERY_S)
