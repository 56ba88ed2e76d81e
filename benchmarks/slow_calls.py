"""Ten thousand calls that wait at once: what they take beside their waiting, and what memory a call costs.

The handler sleeps for a second. Calls arrive evenly over one second, so that all of them are under way when the first
one ends. *Overhead* is what a caller waits longer than the handler sleeps. Memory is what a process had grown by at
most while calls arrived and ended, in the first round: later ones use it again. Times are those of the rounds after it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

import slotmesh
from benchmarks import findings
from benchmarks.arrivals import Arrivals, evenly
from benchmarks.findings import Finding
from benchmarks.processes import MeshProcess, process_mesh
from benchmarks.progress import show
from benchmarks.statistics import percentile
from benchmarks.workloads import METHOD
from slotmesh.codec import OCTET_STREAM
from slotmesh.spec.model import Backend, Endpoint, Mesh, TrafficPolicy

CALLS: Final = 10_000
ARRIVE_S: Final = 1.0
NAP_S: Final = 1.0
MOST_OVERHEAD_S: Final = 0.050
MOST_BYTES: Final = 10e3
WINDOW_CALLS: Final = 2 * CALLS
"""Of a client's stream: a call that waits for the window would not have arrived."""
_LOOK_S: Final = 0.02
_NAME: Final = "nap"
SPEC: Final = Mesh(
    backends=(
        Backend(name=_NAME, handler="benchmarks.handler:Nap", max_ongoing=WINDOW_CALLS, user_config={"seconds": NAP_S}),
    ),
    endpoints=(Endpoint(name=_NAME, traffic=TrafficPolicy(weights={_NAME: 1.0})),),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowCallsRound:
    """What became of all the calls."""

    latencies_s: list[float]
    """Ascending."""
    failures: int
    growth_bytes: dict[str, int]
    """Of client, router and replica, at most."""
    cpu_s: dict[str, float]
    """Processor time that they used."""


async def measure(*, rounds: int) -> list[Finding]:
    """A round is all the calls."""
    async with process_mesh(SPEC, routers=0) as mesh:
        router = await mesh.add_router(f"--window-calls={WINDOW_CALLS}", "--metrics-port=-1")
        await mesh.wait_ready()
        members = {
            "client": MeshProcess("client", os.getpid()),
            "router": router,
            "replica": (await mesh.replicas())[0],
        }
        async with slotmesh.connect(router.address) as client:
            method = client.endpoint(_NAME).options(content_type=OCTET_STREAM).method(METHOD)
            fresh = await one_round(method, members)
            played: list[SlowCallsRound] = []
            for number in range(rounds):
                show(f"slow calls: round {number + 1} of {rounds}")
                played.append(await one_round(method, members))
    show("")
    return found(fresh, played)


async def one_round(method: slotmesh.Method[bytes], members: dict[str, MeshProcess]) -> SlowCallsRound:
    """All the calls, and a look at the memory again and again."""
    arrivals = Arrivals()
    before = {name: member.rss_bytes() for name, member in members.items()}
    before_s = {name: member.cpu_s() for name, member in members.items()}
    most = dict(before)
    making = asyncio.ensure_future(arrivals.make(lambda: method(b""), evenly(CALLS, ARRIVE_S)))
    while not making.done():
        for name, member in members.items():
            most[name] = max(most[name], member.rss_bytes())
        await asyncio.wait([making], timeout=_LOOK_S)
    await making
    return SlowCallsRound(
        latencies_s=sorted(arrivals.latencies_s),
        failures=len(arrivals.failures),
        growth_bytes={name: most[name] - before[name] for name in members},
        cpu_s={name: member.cpu_s() - before_s[name] for name, member in members.items()},
    )


def found(fresh: SlowCallsRound, rounds: Sequence[SlowCallsRound]) -> list[Finding]:
    """Medians of the rounds, but for memory: that of the round in which there was none to use again."""

    def overhead_s(percent: float) -> float:
        return median(percentile(each.latencies_s, percent) - NAP_S for each in rounds)

    def bytes_a_call(name: str) -> float:
        return fresh.growth_bytes[name] / CALLS

    milliseconds, kilobytes = findings.milliseconds, findings.kilobytes
    return [
        findings.figure(
            "slow_p50", f"overhead of {CALLS:,} calls under way at once, p50", overhead_s(50), milliseconds
        ),
        findings.at_most("slow_p99", "the same, p99", overhead_s(99), MOST_OVERHEAD_S, milliseconds),
        findings.at_most(
            "slow_failures", "failures", sum(each.failures for each in (fresh, *rounds)), 0, findings.count
        ),
        findings.at_most(
            "slow_replica_bytes", "memory a call, replica", bytes_a_call("replica"), MOST_BYTES, kilobytes
        ),
        findings.figure("slow_router_bytes", "the same, router", bytes_a_call("router"), kilobytes),
        findings.figure("slow_client_bytes", "the same, client with the benchmark", bytes_a_call("client"), kilobytes),
        *(
            findings.figure(
                f"slow_{name}_cpu",
                f"processor time a call, {name}",
                median(each.cpu_s[name] / CALLS for each in rounds),
                findings.microseconds,
            )
            for name in ("client", "router", "replica")
        ),
    ]
