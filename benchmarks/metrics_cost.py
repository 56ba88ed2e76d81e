"""What metrics cost the router: its processor time a call with them, scraped every second, and without.

Two routers stand side by side before the same replica, one with a metrics endpoint and one without. They take turns,
half a second each, in the order that cancels a drift of the machine; what counts is the ratio within four turns. Two
processes of the same program differ by a few per cent for their whole life, by where their memory happens to lie; so
there are several pairs of processes, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from statistics import median
from typing import Final

import slotmesh
from benchmarks import findings, workloads
from benchmarks.findings import Finding
from benchmarks.processes import MeshProcess, ProcessMesh, ServerProcess, process_mesh, scrape
from benchmarks.progress import show
from benchmarks.statistics import Sample
from benchmarks.workloads import ENDPOINT, METHOD, STREAM_IN_FLIGHT, UNARY_IN_FLIGHT
from slotmesh.codec import OCTET_STREAM
from slotmesh.runtime.channels import open_channel
from slotmesh.spec.model import Backend, Endpoint, Mesh, TrafficPolicy
from slotmesh.v1.router_service_pb2_grpc import RouterServiceStub

MOST_COST: Final = 0.03
TURN_S: Final = 0.5
LOADS: Final = ("stream", "unary")

SPEC: Final = Mesh(
    backends=(Backend(name=ENDPOINT, handler="benchmarks.handler:Echo"),),
    endpoints=(Endpoint(name=ENDPOINT, traffic=TrafficPolicy(weights={ENDPOINT: 1.0})),),
)

Load = Callable[[float], Awaitable[Sample]]


async def measure(*, processes: int, rounds: int) -> list[Finding]:
    """`processes` pairs of routers, `rounds` rounds each, of two seconds for each load."""
    ratios: dict[str, list[float]] = {load: [] for load in LOADS}
    costs_s: dict[str, list[float]] = {load: [] for load in LOADS}
    async with process_mesh(SPEC, routers=0) as mesh:
        for process in range(processes):
            async with pair(mesh, ["--metrics-port=0"], ["--metrics-port=-1"]) as (scraped, plain):
                for number in range(rounds):
                    show(f"metrics: round {process * rounds + number + 1} of {processes * rounds}")
                    for load, of_load in ratios.items():
                        with_metrics, without = await take_turns(load, scraped, plain)
                        of_load.append(with_metrics / without)
                        costs_s[load].append(without)
    show("")
    return [
        finding
        for load, title in (("stream", f"stream, {STREAM_IN_FLIGHT} in flight"), ("unary", "unary calls"))
        for finding in (
            findings.figure(
                f"metrics_{load}_cpu",
                f"router's processor time a call, {title}",
                median(costs_s[load]),
                findings.microseconds,
            ),
            findings.at_most(
                f"metrics_{load}", "more of it with metrics", median(ratios[load]) - 1, MOST_COST, findings.share
            ),
        )
    ]


async def take_turns(load: str, scraped: RouterUnderLoad, plain: RouterUnderLoad) -> tuple[float, float]:
    """Processor time a call, of the first and of the second; one scrape, for they come once in a second of load."""
    turns = [
        await plain.turn(load),
        await scraped.turn(load, scrapes=True),
        await scraped.turn(load),
        await plain.turn(load),
    ]
    return a_call(turns[1:3]), a_call(turns[::3])


def a_call(turns: Sequence[tuple[float, int]]) -> float:
    """Processor time a call in these turns."""
    return sum(cpu_s for cpu_s, _ in turns) / sum(calls for _, calls in turns)


class RouterUnderLoad:
    """A router, and the loads that are put on it."""

    def __init__(
        self, processes: Sequence[MeshProcess], metrics_address: str, unary: RouterServiceStub, mesh: slotmesh.Mesh
    ) -> None:
        self._processes = processes
        self._metrics_address = metrics_address
        method = mesh.endpoint(ENDPOINT).options(content_type=OCTET_STREAM).method(METHOD)
        self._loads: dict[str, Load] = {
            "stream": partial(workloads.futures, [method], STREAM_IN_FLIGHT),
            "unary": partial(workloads.unary, unary, UNARY_IN_FLIGHT),
        }

    async def turn(self, load: str, *, seconds: float = TURN_S, scrapes: bool = False) -> tuple[float, int]:
        """Processor time of the router under a load, and the calls of that time; it is scraped in the middle."""
        before = self._cpu_s()
        scraping = asyncio.ensure_future(self._scrape() if scrapes else asyncio.sleep(0))
        sample = await self._loads[load](seconds)
        await scraping
        return self._cpu_s() - before, sample.calls

    def _cpu_s(self) -> float:
        return sum(each.cpu_s() for each in self._processes)

    async def _scrape(self) -> None:
        await asyncio.sleep(TURN_S / 2)
        await asyncio.to_thread(scrape, self._metrics_address)


@asynccontextmanager
async def pair(
    mesh: ProcessMesh, first: Sequence[str], second: Sequence[str]
) -> AsyncIterator[tuple[RouterUnderLoad, RouterUnderLoad]]:
    """A router with the first flags, and one with the second; both are warm."""
    servers = [await mesh.add_router(*first), await mesh.add_router(*second)]
    try:
        async with AsyncExitStack() as stack:
            routers = [await stack.enter_async_context(under_load(mesh, server)) for server in servers]
            yield routers[0], routers[1]
    finally:
        for server in servers:
            await mesh.remove_router(server)


@asynccontextmanager
async def under_load(
    mesh: ProcessMesh, server: ServerProcess, others: Sequence[MeshProcess] = ()
) -> AsyncIterator[RouterUnderLoad]:
    """A router that is warm. The time of `others` counts as its own."""
    members = await mesh.wait_ready()
    (address,) = [status.metrics_address for status in members.routers if status.router_id == server.name]
    async with open_channel(server.address) as channel, slotmesh.connect(server.address) as client:
        router = RouterUnderLoad([server, *others], address, RouterServiceStub(channel), client)
        for load in LOADS:
            await router.turn(load)
        yield router
