"""What a balancer of the user's own costs the router: its processor time a call with the least of them, and without.

Two routers stand side by side before the same replica. One has the balancer that the backend names, which picks the
first candidate; the other does not have it, so that `least_loaded` picks. They take turns as in `metrics_cost.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import median
from typing import Final

from benchmarks import findings
from benchmarks.findings import Finding
from benchmarks.metrics_cost import LOADS, SPEC, a_call, pair
from benchmarks.processes import process_mesh
from benchmarks.progress import show
from benchmarks.workloads import STREAM_IN_FLIGHT
from slotmesh.balancers import Calls, Candidate
from slotmesh.spec.model import Mesh

MOST_COST: Final = {"stream": 0.05, "unary": 0.10}
PATH: Final = "benchmarks.balancer_cost:First"


class First:
    """Picks the first candidate."""

    def pick(self, _calls: Calls, candidates: Sequence[Candidate]) -> Candidate:
        return candidates[0]


async def measure(*, processes: int, rounds: int) -> list[Finding]:
    """`processes` pairs of routers, `rounds` rounds each, of two seconds for each load."""
    ratios: dict[str, list[float]] = {load: [] for load in LOADS}
    spec = Mesh(backends=tuple(replace(each, balancer=PATH) for each in SPEC.backends), endpoints=SPEC.endpoints)
    async with process_mesh(spec, routers=0) as mesh:
        for process in range(processes):
            flags = ["--metrics-port=0"]
            async with pair(mesh, [*flags, f"--balancers={PATH}"], flags) as (plugged, plain):
                for number in range(rounds):
                    show(f"balancer: round {process * rounds + number + 1} of {processes * rounds}")
                    for load, of_load in ratios.items():
                        turns = [await each.turn(load) for each in (plain, plugged, plugged, plain)]
                        of_load.append(a_call(turns[1:3]) / a_call(turns[::3]))
    show("")
    return [
        findings.at_most(
            f"balancer_{load}",
            f"more processor time of the router with a balancer that picks the first candidate, {title}",
            median(ratios[load]) - 1,
            MOST_COST[load],
            findings.share,
        )
        for load, title in (("stream", f"stream, {STREAM_IN_FLIGHT} in flight"), ("unary", "unary calls"))
    ]
