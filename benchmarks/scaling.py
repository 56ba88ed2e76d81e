"""What more replicas, routers and clients do to throughput: they must not make it slower.

One mesh with a backend for each number of replicas, all of the same handler that does nothing, so that a round measures
them one after another and each is compared with one replica in the same round. All processes share this machine: on two
cores more replicas cannot be faster. What counts is that frames stay whole, so frame sizes are told, hop by hop.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Final, NamedTuple

import slotmesh
from benchmarks import findings, workloads
from benchmarks.findings import Finding
from benchmarks.processes import ProcessMesh, process_mesh
from benchmarks.progress import show
from benchmarks.statistics import Sample
from benchmarks.workloads import METHOD
from slotmesh.codec import OCTET_STREAM
from slotmesh.spec.model import Backend, Endpoint, Mesh, TrafficPolicy

REPLICAS: Final = (1, 2, 4, 8)
LEAST: Final = {2: 0.9, 4: 0.8, 8: 0.7}
"""Calls a second with that many replicas / with one, by the number of replicas."""
MOST_CPU: Final = 1.5
"""Processor time of the routers a call / the same with one replica."""
HANDLER: Final = "benchmarks.handler:Echo"

Load = Callable[[Sequence[slotmesh.Mesh], str, float], Awaitable[Sample]]
"""Runs on an endpoint for so many seconds, its calls shared by the clients."""


class Frames(NamedTuple):
    """Counts of one router's frames, or of all together."""

    calls: float
    from_clients: float
    to_replicas: float
    from_replicas: float
    to_clients: float

    def since(self, before: Frames) -> Frames:
        return Frames(*(now - then for now, then in zip(self, before, strict=True)))

    def sizes(self) -> tuple[float, ...]:
        """Calls in a frame: from clients, to replicas, from replicas, to clients."""
        return tuple(self.calls / max(1.0, frames) for frames in self[1:])


@dataclass(frozen=True, slots=True)
class ScalingRound:
    """One load on one backend, once."""

    calls_per_s: float
    router_s: float
    """Processor time of the routers, a call."""
    frames: Frames


async def measure(
    *, rounds: int, seconds: float, routers: Sequence[int] = (1, 2), clients: Sequence[int] = (1, 8)
) -> list[Finding]:
    """`seconds` for each load on each backend in each round; a mesh for each number of routers."""
    found: list[Finding] = []
    for number in routers:
        async with process_mesh(_spec(), routers=number) as mesh:
            for many in clients:
                # With several routers, and with several clients, a look at what differs is enough.
                loads = LOADS if number == many == 1 else FEW_LOADS
                found += await _measure(mesh, loads, many, rounds, seconds)
    show("")
    return found


async def _measure(
    mesh: ProcessMesh, loads: dict[str, Load], clients: int, rounds: int, seconds: float
) -> list[Finding]:
    of: dict[tuple[str, int], list[ScalingRound]] = {(load, replicas): [] for load in loads for replicas in REPLICAS}
    where = f"{len(mesh.routers)} router{'s' * (len(mesh.routers) > 1)}, {clients} client{'s' * (clients > 1)}"
    async with _clients(mesh, clients) as connected:
        for number in range(rounds + 1):
            for load, run in loads.items():
                for replicas in REPLICAS:
                    show(f"scaling: {where}, round {number} of {rounds}: {load}, {replicas} replicas")
                    measured = await _round(mesh, partial(run, connected, _endpoint(replicas)), seconds)
                    if number:  # the first one warms up
                        of[load, replicas].append(measured)
    return [each for load in loads for each in _findings(where, load, {n: of[load, n] for n in REPLICAS})]


async def _round(mesh: ProcessMesh, run: Callable[[float], Awaitable[Sample]], seconds: float) -> ScalingRound:
    before, cpu_s = await _frames(mesh), _cpu_s(mesh)
    sample = await run(seconds)
    router_s = (_cpu_s(mesh) - cpu_s) / sample.calls
    return ScalingRound(sample.calls_per_s, router_s, (await _frames(mesh)).since(before))


def _findings(where: str, load: str, rounds: dict[int, list[ScalingRound]]) -> list[Finding]:
    found: list[Finding] = []
    one = rounds[1]
    for replicas, measured in rounds.items():
        name = f"{where}: {load}, {replicas} replica{'s' * (replicas > 1)}"
        sizes = [median(each) for each in zip(*(each.frames.sizes() for each in measured), strict=True)]
        title = (
            f"{name} ({median(each.calls_per_s for each in measured):,.0f}/s, "
            f"{median(each.router_s for each in measured) * 1e6:.1f} µs a call at the router, "
            f"frames {' → '.join(f'{size:.0f}' for size in sizes)})"
        )
        slug = f"scaling-{where}-{load}-{replicas}".replace(" ", "-").replace(",", "")
        if replicas == 1:
            found.append(findings.figure(slug, title, median(each.calls_per_s for each in measured), findings.rate))
            continue
        ratios = [each.calls_per_s / beside.calls_per_s for each, beside in zip(measured, one, strict=True)]
        cpu = median(each.router_s / beside.router_s for each, beside in zip(measured, one, strict=True))
        found += (
            findings.at_least(slug, f"{title}, / with one replica", median(ratios), LEAST[replicas], findings.ratio),
            findings.at_least(
                f"{slug}-worst", "   the same, the worst round", min(ratios), LEAST[replicas], findings.ratio
            ),
            findings.at_most(
                f"{slug}-cpu", "   router's time a call / with one replica", cpu, MOST_CPU, findings.ratio
            ),
        )
    return found


# -- loads -------------------------------------------------------------------------------------------------------------


async def _futures(in_flight: int, clients: Sequence[slotmesh.Mesh], endpoint: str, seconds: float) -> Sample:
    each = max(1, in_flight // len(clients))
    methods = [_view(client, endpoint).method(METHOD) for client in clients]
    return _joined(await asyncio.gather(*(workloads.futures([method], each, seconds) for method in methods)))


async def _maps(clients: Sequence[slotmesh.Mesh], endpoint: str, seconds: float) -> Sample:
    methods = [_view(client, endpoint).method(METHOD) for client in clients]
    return _joined(await asyncio.gather(*(workloads.maps(method, seconds) for method in methods)))


async def _keys(keys: int, in_flight: int, clients: Sequence[slotmesh.Mesh], endpoint: str, seconds: float) -> Sample:
    """Each key has its own calls, and none waits for another one's."""
    lanes = [_view(clients[key % len(clients)], endpoint).ordered(f"key-{key}").method(METHOD) for key in range(keys)]
    each = in_flight // keys
    return _joined(await asyncio.gather(*(workloads.futures([lane], each, seconds) for lane in lanes)))


LOADS: Final[dict[str, Load]] = {
    "64 in flight": partial(_futures, 64),
    "512 in flight": partial(_futures, 512),
    "4,096 in flight": partial(_futures, 4096),
    "map": _maps,
    "16 keys, 512 in flight": partial(_keys, 16, 512),
    "512 keys, 512 in flight": partial(_keys, 512, 512),
}
FEW_LOADS: Final[dict[str, Load]] = {
    name: LOADS[name] for name in ("512 in flight", "4,096 in flight", "16 keys, 512 in flight")
}


def _joined(samples: Sequence[Sample]) -> Sample:
    """What ran at the same time, as one."""
    latencies_s = samples[0].latencies_s
    for sample in samples[1:]:
        latencies_s.extend(sample.latencies_s)
    return Sample(sum(each.calls for each in samples), max(each.elapsed_s for each in samples), latencies_s)


# -- the mesh ----------------------------------------------------------------------------------------------------------


def _spec() -> Mesh:
    return Mesh(
        backends=tuple(Backend(name=_endpoint(each), handler=HANDLER, num_replicas=each) for each in REPLICAS),
        endpoints=tuple(
            Endpoint(name=_endpoint(each), traffic=TrafficPolicy(weights={_endpoint(each): 1.0})) for each in REPLICAS
        ),
    )


def _endpoint(replicas: int) -> str:
    return f"echo-{replicas}"


def _view(client: slotmesh.Mesh, endpoint: str) -> slotmesh.Endpoint:
    return client.endpoint(endpoint).options(content_type=OCTET_STREAM)


@asynccontextmanager
async def _clients(mesh: ProcessMesh, count: int) -> AsyncIterator[list[slotmesh.Mesh]]:
    """Clients, at the routers in turn."""
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(slotmesh.connect(mesh.routers[each % len(mesh.routers)].address))
            for each in range(count)
        ]


def _cpu_s(mesh: ProcessMesh) -> float:
    return sum(router.cpu_s() for router in mesh.routers)


async def _frames(mesh: ProcessMesh) -> Frames:
    """Of all routers together."""
    texts = [await mesh.scrape(router) for router in mesh.routers]

    def total(name: str, direction: str = "") -> float:
        return sum(
            float(line.rsplit(" ", 1)[1])
            for text in texts
            for line in text.splitlines()
            if line.startswith(f"{name}_total{{") and direction in line
        )

    into, out = ('slotmesh_direction="in"', 'slotmesh_direction="out"')
    return Frames(
        calls=total("slotmesh_router_calls"),
        from_clients=total("slotmesh_router_frames", into),
        to_replicas=total("slotmesh_router_replica_frames", out),
        from_replicas=total("slotmesh_router_replica_frames", into),
        to_clients=total("slotmesh_router_frames", out),
    )
