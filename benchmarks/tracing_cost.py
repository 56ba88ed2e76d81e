"""What traces cost where one call in a hundred is sampled: processor time of router and replica a call.

The sampling of one router is switched on and off in turns (`sampling_switch.py`), so that what is compared runs in the
same processes; the spans of its calls are the router's and the replica's. A stand-in for the collector takes them. Once
with the rate that routers have by themselves, `--tracing-rate`, above which fewer than that share are sampled; and once
without, which says what a sampled call costs.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from statistics import median
from typing import Final

from benchmarks import findings
from benchmarks.findings import Finding
from benchmarks.metrics_cost import LOADS, SPEC, RouterUnderLoad, a_call, under_load
from benchmarks.processes import process_mesh
from benchmarks.profiling import environment_of_children
from benchmarks.progress import show
from benchmarks.sampling_switch import AS_CONFIGURED, OFF, WITHOUT_RATE
from benchmarks.workloads import STREAM_IN_FLIGHT

MOST_COST: Final = 0.02
RATIO: Final = 0.01
SWITCH: Final = {"BENCHMARK_SAMPLING_SWITCH": "1"}
TURN_S: Final = 0.1
"""Short: what else happens on the machine falls on both."""
_WAYS: Final = {"rated": (AS_CONFIGURED, 1), "all": (WITHOUT_RATE, 5)}
"""Which switch, and in each how many-th round."""


async def measure(*, processes: int, rounds: int) -> list[Finding]:
    """`processes` routers, `rounds` rounds each, of 0.4 s for each load, and a fifth as many without the rate."""
    ratios: dict[tuple[str, str], list[float]] = {(load, way): [] for load in LOADS for way in _WAYS}
    sampled_s: list[float] = []
    async with _collector() as endpoint:
        env = {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": endpoint, "SLOTMESH_TRACING_RATIO": "0"}
        async with process_mesh(SPEC, routers=0, env=env) as mesh:
            replicas = await mesh.replicas()
            for process in range(processes):
                with environment_of_children(SWITCH):
                    flags = (f"--otlp-endpoint={endpoint}", f"--tracing-ratio={RATIO}", "--metrics-port=0")
                    server = await mesh.add_router(*flags)
                async with under_load(mesh, server, replicas) as router:
                    for number in range(rounds):
                        show(f"tracing: round {process * rounds + number + 1} of {processes * rounds}")
                        for load in LOADS:
                            for way, (switch, each) in _WAYS.items():
                                if number % each:
                                    continue
                                traced_s, plain_s = await _take_turns(load, router, server.pid, switch)
                                ratios[load, way].append(traced_s / plain_s)
                                if (load, way) == ("stream", "all"):
                                    sampled_s.append((traced_s - plain_s) / RATIO)
                await mesh.remove_router(server)
    show("")
    return [
        *(
            finding
            for load, title in (("stream", f"stream, {STREAM_IN_FLIGHT} in flight"), ("unary", "unary calls"))
            for finding in (
                findings.at_most(
                    f"tracing_{load}",
                    f"more processor time of router and replica with {RATIO:.0%} of calls traced, {title}",
                    median(ratios[load, "rated"]) - 1,
                    MOST_COST,
                    findings.share,
                ),
                findings.figure(
                    f"tracing_{load}_without_rate",
                    "the same, however many a second",
                    median(ratios[load, "all"]) - 1,
                    findings.share,
                ),
            )
        ),
        findings.figure(
            "tracing_sampled_call",
            "processor time that a sampled call of a stream takes more than others",
            median(sampled_s),
            findings.microseconds,
        ),
    ]


async def _take_turns(load: str, router: RouterUnderLoad, pid: int, switch: signal.Signals) -> tuple[float, float]:
    """Processor time a call, with sampling and without."""
    turns = []
    for each in (OFF, switch, switch, OFF):
        os.kill(pid, each)
        turns.append(await router.turn(load, seconds=TURN_S))
    return a_call(turns[1:3]), a_call(turns[::3])


@asynccontextmanager
async def _collector() -> AsyncIterator[str]:
    """Takes traces and metrics, and drops them, in a process of its own."""
    sink = await asyncio.create_subprocess_exec(sys.executable, "-m", "benchmarks.span_sink", stdin=PIPE, stdout=PIPE)
    if sink.stdin is None or sink.stdout is None:
        raise RuntimeError("pipes were asked for")
    try:
        yield (await sink.stdout.readline()).decode().strip()
    finally:
        sink.stdin.close()
        await sink.wait()
