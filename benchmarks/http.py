"""What the way through ingress and router costs callers by HTTP, beside a bare uvicorn + Starlette app.

64 connections with one request each in flight, to the same handler: in the bare app it is called by the process that
speaks HTTP, in the mesh by a replica behind ingress and router. The two take turns, so that a drift of the machine
cancels out; what counts is the ratio, and the difference of the medians, within a round. Where processors are short
the mesh has four processes that want one, and the bare app one: the processor time of the ingress alone is told, too.
The median at 64 in flight is 64 divided by the rate; how long the way takes where frames have one call each, and each
process works for every call, is told by the median at a rate that leaves time to spare. Ray Serve takes turns with the
mesh where it is installed, after the rounds with the bare app: it has processes that are never idle.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from statistics import median, quantiles
from typing import Final, cast

from benchmarks import findings
from benchmarks.findings import Finding
from benchmarks.loads import HANDLER
from benchmarks.processes import ServerProcess, start_server
from benchmarks.progress import show
from benchmarks.ray_process import PYTHON, ray_serve
from benchmarks.workloads import ENDPOINT, METHOD, PAYLOAD
from examples.local_mesh import local_mesh
from slotmesh.runtime.parent import ParentPipe
from slotmesh.units import parse_host_port

CONNECTIONS: Final = 64
LEAST_RATIO: Final = 0.7
LEAST_OF_RAY: Final = 4.0
MOST_DELAY_S: Final = 0.0015
PACED_PER_S: Final = 1_000
"""Requests a second over all connections, where both have time to spare."""
_WARM_UP_S: Final = 0.5
_REQUEST: Final = (
    f"POST /{ENDPOINT}/{METHOD} HTTP/1.1\r\nhost: bench\r\ncontent-type: application/octet-stream\r\n"
    f"content-length: {len(PAYLOAD)}\r\n\r\n"
).encode() + PAYLOAD


@dataclass(slots=True)
class HttpTally:
    """What the connections have seen."""

    times_s: list[float] = field(default_factory=list)
    failed: int = 0
    is_over: bool = False


class _Connection(asyncio.Protocol):
    """One request after another."""

    def __init__(self, tally: HttpTally, ended: asyncio.Future[None], pace_s: float, offset_s: float) -> None:
        """`pace_s`: a request is due so often, `offset_s` after the start first; 0: when the one before is answered."""
        self._tally = tally
        self._ended = ended
        self._pace_s = pace_s
        self._began = 0.0
        self._due = time.perf_counter() + offset_s
        self._answer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._ask_when_due()

    def data_received(self, data: bytes) -> None:
        self._answer += data
        head, end, body = self._answer.partition(b"\r\n\r\n")
        if not end or len(body) < len(PAYLOAD):
            return
        if not head.startswith(b"HTTP/1.1 200") or body != PAYLOAD:
            self._tally.failed += 1
        self._tally.times_s.append(time.perf_counter() - self._began)
        if self._tally.is_over:
            self._transport.close()
        else:
            self._ask_when_due()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - as asyncio has it
        if not self._ended.done():
            self._ended.set_result(None)

    def _ask_when_due(self) -> None:
        if not self._pace_s:
            self._ask(time.perf_counter())
            return
        due, self._due = self._due, self._due + self._pace_s
        asyncio.get_running_loop().call_later(max(0.0, due - time.perf_counter()), self._ask, due)

    def _ask(self, since: float) -> None:
        """A request that waited for the one before has begun when it was due: `since`."""
        self._answer = b""
        self._began = since
        self._transport.write(_REQUEST)


async def load(address: str, seconds: float, per_s: float = 0.0) -> tuple[float, HttpTally]:
    """Calls a second, and what was seen. `per_s`: so many, over all connections; 0: as many as there can be."""
    loop, tally = asyncio.get_running_loop(), HttpTally()
    ends = [loop.create_future() for _ in range(CONNECTIONS)]
    host, port = parse_host_port(address)
    began = time.perf_counter()
    pace_s = CONNECTIONS / per_s if per_s else 0.0
    for number, ended in enumerate(ends):
        connection = _Connection(tally, ended, pace_s, pace_s * number / CONNECTIONS)
        await loop.create_connection(lambda connection=connection: connection, host, port)  # type: ignore[misc]
    await asyncio.sleep(seconds)
    tally.is_over = True
    await asyncio.gather(*ends)
    return len(tally.times_s) / (time.perf_counter() - began), tally


@dataclass(slots=True)
class _Rounds:
    """What the turns of bare app and mesh have shown."""

    ratios: list[float] = field(default_factory=list)
    delays_s: list[float] = field(default_factory=list)
    paced_delays_s: list[float] = field(default_factory=list)
    rates: dict[str, list[float]] = field(default_factory=lambda: {"bare": [], "mesh": []})
    tails_s: dict[str, list[float]] = field(default_factory=lambda: {"bare": [], "mesh": []})
    costs_s: list[float] = field(default_factory=list)
    """Processor time of the ingress a call."""

    async def add(self, bare: ServerProcess, ingress: ServerProcess, seconds: float) -> None:
        """One more round: two turns of each, and one of each at a rate that leaves time to spare."""
        servers = {"bare": bare, "mesh": ingress}
        rates: dict[str, float] = {"bare": 0.0, "mesh": 0.0}
        middles_s: dict[str, float] = {"bare": 0.0, "mesh": 0.0}
        for way in ("bare", "mesh", "mesh", "bare"):
            before_s = ingress.cpu_s()
            rate, tally = await load(servers[way].address, seconds)
            if tally.failed:
                raise RuntimeError(f"{tally.failed} requests failed")
            if way == "mesh":
                self.costs_s.append((ingress.cpu_s() - before_s) / len(tally.times_s))
            self.rates[way].append(rate)
            self.tails_s[way].append(quantiles(tally.times_s, n=100)[98])
            rates[way] += rate
            middles_s[way] += median(tally.times_s) / 2
        self.ratios.append(rates["mesh"] / rates["bare"])
        self.delays_s.append(middles_s["mesh"] - middles_s["bare"])
        paced_s: dict[str, float] = {}
        for way, server in servers.items():
            _, tally = await load(server.address, seconds, PACED_PER_S)
            paced_s[way] = median(tally.times_s)
        self.paced_delays_s.append(paced_s["mesh"] - paced_s["bare"])

    def findings(self) -> list[Finding]:
        """Medians of the rounds."""
        return [
            findings.figure("http_bare", "bare uvicorn + Starlette", median(self.rates["bare"]), findings.rate),
            findings.figure("http_mesh", "ingress, router, replica", median(self.rates["mesh"]), findings.rate),
            findings.at_least(
                "http_ratio", "calls a second, mesh / bare", median(self.ratios), LEAST_RATIO, findings.ratio
            ),
            findings.at_most(
                "http_p50",
                "p50 more than bare, at those rates",
                median(self.delays_s),
                MOST_DELAY_S,
                findings.milliseconds,
            ),
            findings.figure(
                "http_paced_p50",
                f"p50 more than bare, {PACED_PER_S:,} requests a second",
                median(self.paced_delays_s),
                findings.milliseconds,
            ),
            findings.figure("http_bare_p99", "p99, bare", median(self.tails_s["bare"]), findings.milliseconds),
            findings.figure("http_mesh_p99", "p99, mesh", median(self.tails_s["mesh"]), findings.milliseconds),
            findings.figure(
                "http_cost", "processor time of the ingress a call", median(self.costs_s), findings.microseconds
            ),
        ]


async def measure(*, rounds: int, seconds: float) -> list[Finding]:
    """`seconds` for each turn, of which a round has two of each. Raises CannotStart."""
    seen = _Rounds()
    async with AsyncExitStack() as stack:
        mesh = await stack.enter_async_context(local_mesh(HANDLER))
        parent = stack.enter_context(ParentPipe())
        bare = await start_server("bare app", "benchmarks.bare_http", (), parent)
        stack.push_async_callback(bare.stop)
        flags = (f"--routers={mesh.router}", f"--controller={mesh.controller}", "--metrics-port=-1")
        ingress = await start_server("ingress", "ingress_service", flags, parent)
        stack.push_async_callback(ingress.stop)
        for server in (bare, ingress):
            await load(server.address, _WARM_UP_S)
        for number in range(rounds):
            show(f"http: round {number + 1} of {rounds}")
            await seen.add(bare, ingress, seconds)
        beside_ray = await _beside_ray(ingress.address, rounds, seconds) if PYTHON.exists() else []
    show("")
    return [*seen.findings(), *beside_ray]


async def _beside_ray(mesh: str, rounds: int, seconds: float) -> list[Finding]:
    """The mesh and Ray Serve in turns. Raises CannotStart."""
    ratios: list[float] = []
    rates: list[float] = []
    async with ray_serve(f"/{ENDPOINT}/{METHOD}") as ray:
        await load(ray, _WARM_UP_S)
        for number in range(rounds):
            show(f"http: beside Ray Serve, round {number + 1} of {rounds}")
            found: dict[str, float] = {mesh: 0.0, ray: 0.0}
            for address in (ray, mesh, mesh, ray):
                rate, tally = await load(address, seconds)
                if tally.failed:
                    raise RuntimeError(f"{tally.failed} requests failed")
                found[address] += rate / 2
            rates.append(found[ray])
            ratios.append(found[mesh] / found[ray])
    return [
        findings.figure("http_ray", "Ray Serve, its proxy and one replica", median(rates), findings.rate),
        findings.at_least(
            "http_of_ray", "calls a second, mesh / Ray Serve", median(ratios), LEAST_OF_RAY, findings.ratio
        ),
    ]
