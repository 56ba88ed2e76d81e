"""Payloads of 100 bytes to 8 MB, through a router and at a bare `grpc.aio` server, in turns.

Compared are three processes with two: client, router and replica; client and bare server. Both servers decode the
same arguments and encode the same results, on uvloop; both clients do the same for each call. The mesh's client makes
calls on its stream, the bare one unary rpcs. What is called: `size`, which answers with a number, and `echo`.
"""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

import grpc

import slotmesh
from benchmarks import findings, payload_handler
from benchmarks.baseline import LARGE_MESSAGES, bare_process, request
from benchmarks.findings import Finding
from benchmarks.processes import MeshProcess, process_mesh
from benchmarks.progress import show
from benchmarks.statistics import percentile
from slotmesh.codec import decode, encode_arguments
from slotmesh.spec.model import Backend, Endpoint, Mesh, TrafficPolicy
from slotmesh.v1.router_service_pb2_grpc import RouterServiceStub

SIZES: Final = {"100B": 100, "10KB": 10_000, "150KB": 150_000, "1MB": 1_000_000, "8MB": 8_000_000}
IN_FLIGHT: Final = (1, 8, 32, 256)
OTHER_IN_FLIGHT: Final = 8
"""Calls in flight of arrays and dataclasses."""
MOST_BYTES: Final = 40_000_000
"""In flight: fewer calls of large payloads."""
_WARM_UP_CALLS: Final = 3
_NAME: Final = "payloads"


@dataclass(frozen=True, slots=True)
class PayloadLoad:
    """One load: calls of one method, always this number of them in flight."""

    size: str
    kind: str
    method: str
    in_flight: int

    @property
    def name(self) -> str:
        """Stable, for scripts."""
        return f"{self.size}_{self.kind}_{self.method}_{self.in_flight}"

    @property
    def is_wanted(self) -> bool:
        """Whether there is a bound on its rate."""
        return self.kind == "bytes" and self.in_flight > 1


LEAST_OF_RATE: Final = {"150KB": 0.8, "1MB": 0.5}
MOST_OF_CPU: Final = {"1MB": 3.0}
MOST_OF_P50: Final = 1.7


@dataclass(frozen=True, slots=True)
class PayloadTurn:
    """What came of one turn."""

    calls_per_s: float
    p50_s: float
    cpu_s: float
    """Processor time of a call in all processes."""


def loads(sizes: Iterable[str] = SIZES, kinds: Iterable[str] = ("bytes", "array", "dataclasses")) -> list[PayloadLoad]:
    """Every load that is measured."""
    return [
        PayloadLoad(size, kind, method, in_flight)
        for size in sizes
        for kind in kinds
        for method in ("size", "echo")
        for in_flight in (IN_FLIGHT if kind == "bytes" else (OTHER_IN_FLIGHT,))
        if in_flight * SIZES[size] <= MOST_BYTES or in_flight == OTHER_IN_FLIGHT
    ]


Call = Callable[[], Awaitable[Any]]
"""Makes one call, and waits for its result."""


class _Side:
    """The mesh, or the bare server: makes the calls of a load, and has its processes' time."""

    def __init__(self, processes: Sequence[MeshProcess], call_of: Callable[[PayloadLoad], Call]) -> None:
        self._processes = processes
        self._call_of = call_of

    async def turn(self, load: PayloadLoad, seconds: float) -> PayloadTurn:
        call = self._call_of(load)
        for _ in range(_WARM_UP_CALLS):
            await call()
        latencies_s = array("d")
        began_cpu_s, began = self._cpu_s(), time.perf_counter()
        until = began + seconds

        async def again() -> None:
            while (made := time.perf_counter()) < until:
                await call()
                latencies_s.append(time.perf_counter() - made)

        await asyncio.gather(*(again() for _ in range(load.in_flight)))
        elapsed_s, calls = time.perf_counter() - began, len(latencies_s)
        return PayloadTurn(
            calls / elapsed_s, percentile(sorted(latencies_s), 50), (self._cpu_s() - began_cpu_s) / calls
        )

    def _cpu_s(self) -> float:
        return time.process_time() + sum(each.cpu_s() for each in self._processes)


def _spec() -> Mesh:
    backend = Backend(name=_NAME, handler="benchmarks.payload_handler:Payloads")
    return Mesh(backends=(backend,), endpoints=(Endpoint(name=_NAME, traffic=TrafficPolicy(weights={_NAME: 1.0})),))


@asynccontextmanager
async def _mesh_side() -> AsyncIterator[_Side]:
    async with process_mesh(_spec()) as mesh, slotmesh.connect(mesh.routers[0].address) as client:
        endpoint = client.endpoint(_NAME)

        def call_of(load: PayloadLoad) -> Call:
            view = endpoint.options(content_type=payload_handler.content_type(load.kind))
            method, value = (
                view.method(f"{load.kind}_{load.method}"),
                payload_handler.value(load.kind, SIZES[load.size]),
            )
            return lambda: method(value)

        yield _Side([*mesh.routers, *await mesh.replicas()], call_of)


@asynccontextmanager
async def _bare_side() -> AsyncIterator[_Side]:
    async with (
        bare_process(["--payloads"]) as server,
        grpc.aio.insecure_channel(server.address, options=LARGE_MESSAGES) as channel,
    ):
        stub = RouterServiceStub(channel)

        def call_of(load: PayloadLoad) -> Call:
            name, content_type = f"{load.kind}_{load.method}", payload_handler.content_type(load.kind)
            value = payload_handler.value(load.kind, SIZES[load.size])

            async def call() -> Any:
                payload = encode_arguments(content_type, (value,), {})
                reply = await stub.Call(request(_NAME, name, payload, content_type))
                return decode(content_type, reply.payload)

            return call

        yield _Side([server], call_of)


Turns = list[tuple[PayloadTurn, PayloadTurn]]
"""Of the bare server and of the mesh, round by round."""


async def measure(*, rounds: int, seconds: float, chosen: Sequence[PayloadLoad] | None = None) -> list[Finding]:
    """`seconds`: of each load at each side in each round."""
    turns: dict[PayloadLoad, Turns] = {load: [] for load in chosen or loads()}
    async with AsyncExitStack() as stack:
        bare = await stack.enter_async_context(_bare_side())
        mesh = await stack.enter_async_context(_mesh_side())
        for number in range(rounds):
            for load, its in turns.items():
                show(f"payloads: round {number + 1} of {rounds}: {load.name}")
                its.append((await bare.turn(load, seconds), await mesh.turn(load, seconds)))
    show("")
    return [finding for load, its in turns.items() for finding in found(load, its)]


def found(load: PayloadLoad, turns: Turns) -> list[Finding]:
    """Ratios of the mesh to the bare server, each the median of the rounds' ratios."""

    def ratio(figure: Callable[[PayloadTurn], float]) -> float:
        return median(figure(mesh) / figure(bare) for bare, mesh in turns)

    def beside(write: findings.Format, figure: Callable[[PayloadTurn], float]) -> str:
        return f"of {write(median(figure(bare) for bare, _ in turns))}"

    what = f"{load.size} of {load.kind}, {load.method}, {load.in_flight} in flight"
    rate = beside(findings.rate, lambda turn: turn.calls_per_s)
    cpu = beside(findings.milliseconds, lambda turn: turn.cpu_s)
    name = f"payloads_{load.name}"
    return [
        _bounded(
            f"{name}_rate",
            f"{what}: rate, {rate}",
            ratio(lambda turn: turn.calls_per_s),
            least=LEAST_OF_RATE.get(load.size) if load.is_wanted else None,
        ),
        _bounded(
            f"{name}_cpu",
            f"{what}: processor time, {cpu}",
            ratio(lambda turn: turn.cpu_s),
            most=MOST_OF_CPU.get(load.size) if load.is_wanted else None,
        ),
        *(
            [
                _bounded(
                    f"{name}_p50",
                    f"{what}: p50, {beside(findings.milliseconds, lambda turn: turn.p50_s)}",
                    ratio(lambda turn: turn.p50_s),
                    most=MOST_OF_P50 if load.kind == "bytes" else None,
                )
            ]
            if load.in_flight == 1
            else []
        ),
    ]


def _bounded(name: str, title: str, value: float, *, least: float | None = None, most: float | None = None) -> Finding:
    if least is not None:
        return findings.at_least(name, title, value, least, findings.ratio)
    if most is not None:
        return findings.at_most(name, title, value, most, findings.ratio)
    return findings.figure(name, title, value, findings.ratio)
