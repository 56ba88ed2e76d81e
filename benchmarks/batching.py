"""Whether batches fill under load: how long calls wait for theirs at 90 % of what the handler can do.

Calls arrive as a Poisson process. They go through a real mesh to a handler whose batches cost a fixed time and a little
for each call (`priced_handler`). The very times at which they were made are then given to two simulations that have
nothing around them: one cuts a batch when the handler is free, the other when a timer ends.

*Wait* is from making the call in the client to the start of its batch in the handler: the way there through the router,
and the wait at the replica. The simulations have no way there. How long it is, calls say that wait for no batch, a few
beside the others; the bound is on the p99 of the wait less their median. *Latency less service* has the way back in
it, too: all that the caller waited for beside the batch itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median
from typing import Final

import slotmesh
from benchmarks import findings
from benchmarks.arrivals import Arrivals, poisson
from benchmarks.batch_queue import FinishedBatch, Station, cut_on_timer, waits_s, work_conserving
from benchmarks.findings import Finding, milliseconds, ratio
from benchmarks.priced_handler import STATION, WAIT_S, stamps
from benchmarks.processes import process_mesh
from benchmarks.progress import show
from benchmarks.statistics import percentile
from slotmesh.codec import OCTET_STREAM
from slotmesh.spec.model import Backend, Endpoint, Mesh, TrafficPolicy

LOAD: Final = 0.9
"""Share of what the handler can do."""
MOST_TIMES: Final = 1.2
MOST_GROWTH: Final = 1.5
"""Of the median wait from the first half of a round to the second. Random load moves it; a queue that grows for as long
as the load lasts triples it."""
_WARM_UP_S: Final = 1.0
_SCOUTS: Final = 25.0
"""Calls a second that wait for no batch."""
_NAME: Final = "priced"
SPEC: Final = Mesh(
    backends=(Backend(name=_NAME, handler="benchmarks.priced_handler:Priced"),),
    endpoints=(Endpoint(name=_NAME, traffic=TrafficPolicy(weights={_NAME: 1.0})),),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchingRound:
    """What became of one sequence of arrivals. Each list has an entry a call, in the order of arrival."""

    mesh_s: list[float]
    """Waits in the mesh."""
    way_s: float
    """The way of a call to the handler; the median of those that wait for no batch."""
    caller_s: list[float]
    """Latency less service."""
    ideal_s: list[float]
    """Waits where batches are cut when the station is free."""
    timer_s: list[float]
    """Waits where they are cut on a timer."""
    batches: list[FinishedBatch]
    """Of the mesh."""
    service_s: float
    """Of a batch in the mesh / what it should take; the mean."""
    gap_s: float
    """From the end of a batch to the start of the next one, while calls waited; the median."""


async def measure(*, rounds: int, seconds: float) -> list[Finding]:
    """A round is so many seconds of arrivals, other ones each."""
    played: list[BatchingRound] = []
    async with process_mesh(SPEC) as mesh, slotmesh.connect(mesh.routers[0].address) as client:
        priced = client.endpoint(_NAME).options(content_type=OCTET_STREAM)
        serve, arrive = priced.method("serve"), priced.method("arrive")
        rate = LOAD * STATION.capacity
        await Arrivals().make(lambda: serve(b""), poisson(rate, _WARM_UP_S, seed=0))
        for number in range(1, rounds + 1):
            show(f"batching: round {number} of {rounds}")
            arrivals, scouts = Arrivals(), Arrivals()
            await asyncio.gather(
                arrivals.make(lambda: serve(b""), poisson(rate, seconds, seed=number)),
                scouts.make(lambda: arrive(b""), poisson(_SCOUTS, seconds, seed=-number)),
            )
            played.append(compared(arrivals, scouts))
    show("")
    return found(played)


def compared(arrivals: Arrivals, scouts: Arrivals, station: Station = STATION, wait_s: float = WAIT_S) -> BatchingRound:
    """What the mesh did, and what the simulations make of the same arrivals.

    Raises:
        BaseException: the first failure, where a call failed.
    """
    for failure in (*arrivals.failures, *scouts.failures):
        raise failure
    made_s = arrivals.made_s
    stamped = [stamps(result) for result in arrivals.results]
    batches, gaps_s, services = _batches(made_s, stamped, station)
    return BatchingRound(
        mesh_s=[began_s - at for at, (began_s, _) in zip(made_s, stamped, strict=True)],
        way_s=median(stamps(result)[0] - at for at, result in zip(scouts.made_s, scouts.results, strict=True)),
        caller_s=[
            latency_s - (ended_s - began_s)
            for latency_s, (began_s, ended_s) in zip(arrivals.latencies_s, stamped, strict=True)
        ],
        ideal_s=waits_s(made_s, work_conserving(made_s, station)),
        timer_s=waits_s(made_s, cut_on_timer(made_s, station, wait_s)),
        batches=batches,
        service_s=fmean(services),
        gap_s=median(gaps_s) if gaps_s else 0.0,
    )


def _batches(
    made_s: Sequence[float], stamped: Sequence[tuple[float, float]], station: Station
) -> tuple[list[FinishedBatch], list[float], list[float]]:
    """The batches that the mesh made; the gaps between those that found calls waiting; how long each took."""
    calls: dict[tuple[float, float], int] = {}
    first_s: dict[tuple[float, float], float] = {}
    for at, stamp in zip(made_s, stamped, strict=True):
        calls[stamp] = calls.get(stamp, 0) + 1
        first_s.setdefault(stamp, at)
    order = sorted(calls)
    gaps_s = [after[0] - before[1] for before, after in pairwise(order) if first_s[after] < before[1] - station.batch_s]
    services = [(ended_s - began_s) / station.takes_s(calls[began_s, ended_s]) for began_s, ended_s in order]
    return [FinishedBatch(calls[stamp], stamp[0]) for stamp in order], gaps_s, services


def growth(waits: Sequence[float]) -> float:
    """Median of the second half / of the first one."""
    half = len(waits) // 2
    return median(waits[half:]) / median(waits[:half])


def found(rounds: Sequence[BatchingRound]) -> list[Finding]:
    """Medians of the rounds; ratios are of a round's own simulation."""
    return [*_batches_found(rounds), *_waits_found(rounds), *_ratios_found(rounds)]


def _batches_found(rounds: Sequence[BatchingRound]) -> list[Finding]:
    gap_s = median(each.gap_s for each in rounds)
    return [
        findings.figure(
            "batching_calls",
            "calls in a batch, mean",
            fmean(batch.calls for each in rounds for batch in each.batches),
            ratio,
        ),
        findings.figure(
            "batching_service",
            "time of a batch / what it should take",
            fmean(each.service_s for each in rounds),
            ratio,
        ),
        findings.figure(
            "batching_gap", "from the end of a batch to the next one, while calls wait, p50", gap_s, milliseconds
        ),
    ]


def _waits_found(rounds: Sequence[BatchingRound]) -> list[Finding]:
    def p99(name: str) -> float:
        return median(percentile(sorted(getattr(each, name)), 99) for each in rounds)

    return [
        findings.figure("batching_timer", "wait, simulated, cut on a timer, p99", p99("timer_s"), milliseconds),
        findings.figure(
            "batching_timer_growth",
            "the same, median of the second half / first half",
            median(growth(each.timer_s) for each in rounds),
            ratio,
        ),
        findings.figure(
            "batching_ideal", "wait, simulated, cut when the handler is free, p99", p99("ideal_s"), milliseconds
        ),
        findings.figure("batching_wait", "wait in the mesh, p99", p99("mesh_s"), milliseconds),
        findings.figure(
            "batching_way", "way to the handler in it, p50", median(each.way_s for each in rounds), milliseconds
        ),
    ]


def _ratios_found(rounds: Sequence[BatchingRound]) -> list[Finding]:
    def times(name: str, *, less_way: bool = False) -> float:
        """Of the p99 of the simulation that cuts when the handler is free."""
        return median(
            (percentile(sorted(getattr(each, name)), 99) - less_way * each.way_s) / percentile(sorted(each.ideal_s), 99)
            for each in rounds
        )

    return [
        findings.at_most(
            "batching_ratio",
            "wait less the way / simulated, cut when free, p99",
            times("mesh_s", less_way=True),
            MOST_TIMES,
            ratio,
        ),
        findings.figure("batching_whole_ratio", "the same with the way", times("mesh_s"), ratio),
        findings.figure("batching_caller_ratio", "latency less service / simulated, p99", times("caller_s"), ratio),
        findings.at_most(
            "batching_growth",
            "wait in the mesh, median of the second half / first half",
            median(growth(each.mesh_s) for each in rounds),
            MOST_GROWTH,
            ratio,
        ),
    ]
