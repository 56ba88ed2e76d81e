"""What traces cost where one call in a hundred is sampled: processor time of router and replica a call.

As what metrics cost (`metrics_cost.py`): two routers side by side before one replica, which take turns. Router and
replica make spans of the calls that the one router samples; the other one knows of no collector. A stand-in for the
collector takes all spans. Above `--tracing-rate` fewer than that share are sampled.
"""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from statistics import median
from typing import Final

from benchmarks import findings
from benchmarks.findings import Finding
from benchmarks.metrics_cost import LOADS, SPEC, pair, take_turns
from benchmarks.processes import process_mesh
from benchmarks.progress import show
from benchmarks.workloads import STREAM_IN_FLIGHT

MOST_COST: Final = 0.02
RATIO: Final = 0.01


async def measure(*, processes: int, rounds: int) -> list[Finding]:
    """`processes` pairs of routers, `rounds` rounds each, of two seconds for each load."""
    ratios: dict[str, list[float]] = {load: [] for load in LOADS}
    async with _collector() as endpoint:
        env = {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": endpoint, "SLOTMESH_TRACING_RATIO": "0"}
        async with process_mesh(SPEC, routers=0, env=env) as mesh:
            traced = [f"--otlp-endpoint={endpoint}", f"--tracing-ratio={RATIO}", "--metrics-port=0"]
            for process in range(processes):
                async with pair(mesh, traced, ["--metrics-port=0"], await mesh.replicas()) as (first, second):
                    for number in range(rounds):
                        show(f"tracing: round {process * rounds + number + 1} of {processes * rounds}")
                        for load, of_load in ratios.items():
                            with_traces, without = await take_turns(load, first, second, scrapes=False)
                            of_load.append(with_traces / without)
    show("")
    return [
        findings.at_most(
            f"tracing_{load}",
            f"more processor time of router and replica with {RATIO:.0%} of calls traced, {title}",
            median(ratios[load]) - 1,
            MOST_COST,
            findings.share,
        )
        for load, title in (("stream", f"stream, {STREAM_IN_FLIGHT} in flight"), ("unary", "unary calls"))
    ]


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
