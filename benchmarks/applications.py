"""What an application gets that sets nothing: on asyncio's event loop and on uvloop, with gRPC as slotmesh has it.

Beside it the same application with gRPC as it comes: the SDK turns gRPC's event engine off where nobody has said
otherwise (`slotmesh.runtime.environment`). Ratios are to the bare server of the same round.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from asyncio.subprocess import PIPE
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import median
from typing import Final

from benchmarks import findings, workloads
from benchmarks.baseline import bare_server
from benchmarks.findings import Finding
from benchmarks.loads import HANDLER
from benchmarks.progress import show
from benchmarks.workloads import UNARY_IN_FLIGHT
from examples.local_mesh import local_mesh
from slotmesh.runtime.channels import open_channel
from slotmesh.runtime.environment import NO_EVENT_ENGINE
from slotmesh.v1.router_service_pb2_grpc import RouterServiceStub

SCRIPT: Final = Path(__file__).with_name("application.py")
LOOPS: Final = ("asyncio", "uvloop")
LOADS: Final = {"futures": "512 in flight", "map": "map", "single": "one call at a time"}
_TIMEOUT_S: Final = 120.0


async def measure(*, rounds: int, seconds: float) -> list[Finding]:
    """A round: the bare server, then each application, each of its loads for so many seconds."""
    ratios: dict[tuple[str, bool, str], list[float]] = {}
    async with AsyncExitStack() as stack:
        bare_address = await stack.enter_async_context(bare_server())
        mesh = await stack.enter_async_context(local_mesh(HANDLER))
        bare = RouterServiceStub(await stack.enter_async_context(open_channel(bare_address)))
        for number in range(rounds):
            show(f"applications: round {number + 1} of {rounds}")
            sample = await workloads.unary(bare, UNARY_IN_FLIGHT, seconds)
            bare_rate = sample.calls / sample.elapsed_s
            for loop in LOOPS:
                for sets_nothing in (True, False):
                    rates = await _run(mesh.router, loop, seconds, sets_nothing=sets_nothing)
                    for load, calls_per_s in rates.items():
                        ratios.setdefault((loop, sets_nothing, load), []).append(calls_per_s / bare_rate)
    show("")
    return [
        findings.figure(
            f"application_{loop}_{load}{'' if sets_nothing else '_event_engine'}",
            f"{loop}, {LOADS[load]}{'' if sets_nothing else ', gRPC as it comes'} / bare",
            median(found),
            findings.ratio,
        )
        for (loop, sets_nothing, load), found in ratios.items()
    ]


async def _run(router: str, loop: str, seconds: float, *, sets_nothing: bool) -> dict[str, float]:
    """Calls a second, by load."""
    name, _ = NO_EVENT_ENGINE
    environment = {key: value for key, value in os.environ.items() if key != name}
    if not sets_nothing:
        environment[name] = ""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, SCRIPT, router, loop, str(seconds)),
        stdout=PIPE,
        env={**environment, "PYTHONPATH": str(Path.cwd())},
    )
    async with asyncio.timeout(_TIMEOUT_S):
        output, _ = await process.communicate()
    if process.returncode:
        raise SystemExit(f"the application ended with status {process.returncode}")
    rates: dict[str, float] = json.loads(output)
    return rates
