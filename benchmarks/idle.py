"""What a mesh costs in which nothing happens: the processor time of its servers, without clients and beside idle ones.

Each client is a session of the SDK that has made one call: `SESSIONS` of them, in a few processes. The time of every
server is the kernel's, of all its threads.
"""

from __future__ import annotations

import asyncio
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

from benchmarks import findings
from benchmarks.findings import Finding
from benchmarks.processes import MeshProcess, end_of, process_mesh
from benchmarks.progress import show
from benchmarks.workloads import ENDPOINT, METHOD
from slotmesh.runtime.exits import CannotStart
from slotmesh.spec.model import Backend, Endpoint, Mesh, TrafficPolicy

SESSIONS: Final = 1_000
CLIENT_PROCESSES: Final = 4
REPLICAS: Final = 2
SETTLE_S: Final = 10.0
"""After the last call: until only idle sessions are left."""
MOST_ROUTER: Final = 0.02
MOST_ALONE: Final = 0.01
"""Of a server that has no clients."""

SPEC: Final = Mesh(
    backends=(Backend(name=ENDPOINT, handler="benchmarks.handler:Echo", num_replicas=REPLICAS),),
    endpoints=(Endpoint(name=ENDPOINT, traffic=TrafficPolicy(weights={ENDPOINT: 1.0})),),
)


async def measure(*, seconds: float) -> list[Finding]:
    """`seconds` of idleness without clients, and as many with."""
    async with process_mesh(SPEC) as mesh, AsyncExitStack() as stack:
        servers: dict[str, MeshProcess] = {
            "controller": mesh.controller,
            "router": mesh.routers[0],
            "replica": (await mesh.replicas())[0],
        }
        show("idle: no clients")
        await asyncio.sleep(SETTLE_S)
        alone = await _share_of_a_core(servers, seconds)
        show(f"idle: opening {SESSIONS:,} sessions")
        await asyncio.gather(
            *(
                stack.enter_async_context(_idle_clients(mesh.routers[0].address, SESSIONS // CLIENT_PROCESSES))
                for _ in range(CLIENT_PROCESSES)
            )
        )
        show(f"idle: {SESSIONS:,} sessions")
        await asyncio.sleep(SETTLE_S)
        beside = await _share_of_a_core(servers, seconds)
    show("")
    found = [
        findings.at_most(f"idle_{name}_alone", f"{name}'s share of a core, no clients", share, MOST_ALONE, _percent)
        for name, share in alone.items()
    ]
    return [
        *found,
        *(
            findings.figure(f"idle_{name}", f"{name}, {SESSIONS:,} idle sessions", beside[name], _percent)
            for name in ("controller", "replica")
        ),
        findings.at_most("idle_router", f"router, {SESSIONS:,} idle sessions", beside["router"], MOST_ROUTER, _percent),
    ]


async def _share_of_a_core(servers: Mapping[str, MeshProcess], seconds: float) -> dict[str, float]:
    before, began = {name: server.cpu_s() for name, server in servers.items()}, time.perf_counter()
    await asyncio.sleep(seconds)
    took = time.perf_counter() - began
    return {name: (server.cpu_s() - before[name]) / took for name, server in servers.items()}


@asynccontextmanager
async def _idle_clients(address: str, sessions: int) -> AsyncIterator[Process]:
    """A process with so many sessions, each of which has made one call."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.idle_clients", address, ENDPOINT, METHOD, str(sessions)),
        stdin=PIPE,
        stdout=PIPE,
    )
    try:
        if process.stdout is None or not await process.stdout.readline():
            raise CannotStart("the idle clients have ended; the reason is above")
        yield process
    finally:
        if process.stdin is not None:
            process.stdin.close()
        await end_of(process, within_s=60.0)


def _percent(value: float) -> str:
    return f"{value:.2%}"
