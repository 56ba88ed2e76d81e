"""What a decision of the router costs, its core alone: submit, dispatch, cut into a frame, complete.

A decision is that for a run of one call. Frames of 64 such runs are what unary calls and calls of many keys come to
under load; one by one is the least that can come. Shapes alternate within one process, and the best round of each
counts: what is measured is the code, and all that disturbs it makes it slower.

The garbage collector runs as it does in a router: what is imported is frozen, the routing table is not.
"""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Iterable, Sequence
from typing import Final

from benchmarks import findings, tap_cost
from benchmarks.findings import Finding
from benchmarks.progress import show
from benchmarks.workloads import PAYLOAD
from router_service.core.callers import Window
from router_service.core.calls import RouterCallOptions
from router_service.core.commands import DeliverResults, Flush, RouterCommand
from router_service.core.events import CallsSubmitted, LinkOpened, RunsCompleted, TableReceived
from router_service.core.limits.capacity import ReportedCapacity
from router_service.core.rosters import RosterVersion, TableRoster
from router_service.core.routing_table import BackendRoute, EndpointRoute, ReplicaRoute, RoutingTable
from router_service.core.runs import Caller
from router_service.core.scheduler import RouterScheduler
from slotmesh.spec.model import Backend

FEW: Final = 10
MANY: Final = 10_000
FRAME_RUNS: Final = 64
LEAST_RATE: Final = 150_000.0
MOST_GROWTH: Final = 2.0
_CAPACITY: Final = ReportedCapacity(max_ongoing=512)
_FRAME_CALLS: Final = 16_384
_FRAME_BYTES: Final = 1024 * 1024


class CoreDrive:
    """A scheduler with that many replicas, and one caller."""

    def __init__(self, replicas: int) -> None:
        self._scheduler = RouterScheduler(random.Random(1).random)
        self._caller = Caller(Window(2**40, 2**40))
        self._options = RouterCallOptions(wire=b"options")
        self._now = 0.0
        self._next_id = 1
        table = RoutingTable(
            generation="benchmark",
            revision=1,
            endpoints={"e": EndpointRoute(name="e", weights={"b": 1.0})},
            backends={
                "b": BackendRoute(
                    settings=Backend(name="b"),
                    replicas=[
                        ReplicaRoute(key=(f"replica-{number}", "1"), address="", max_ongoing=_CAPACITY.max_ongoing)
                        for number in range(replicas)
                    ],
                )
            },
            roster=TableRoster(RosterVersion("benchmark", 1)),
        )
        self._scheduler.step(TableReceived(table), self._now)
        for replica in list(self._scheduler.topology.replicas.values()):
            self._scheduler.step(LinkOpened(replica, _CAPACITY), self._now)

    def decisions_per_s(self, decisions: int, frame: int) -> float:
        """Takes that many runs through, in frames of `frame`; every call has its result in the end."""
        payloads = [PAYLOAD]
        answered = 0
        started = time.perf_counter()
        for _ in range(decisions // frame):
            first = self._next_id
            self._next_id += frame
            self._now += 1e-5
            batches = [(self._options, range(call, call + 1), payloads) for call in range(first, first + frame)]
            answered += self._complete(self._scheduler.step(CallsSubmitted(self._caller, "e", batches), self._now))
        elapsed_s = time.perf_counter() - started
        if answered != decisions // frame * frame or self._caller.runs:
            raise AssertionError(f"{answered} of {decisions} calls were answered")
        return answered / elapsed_s

    def _complete(self, commands: Iterable[RouterCommand]) -> int:
        """What replicas do that answer each frame at once, with one frame; returns the answers."""
        scheduler, answered = self._scheduler, 0
        for command in commands:
            if isinstance(command, Flush):
                results = []
                for batch in scheduler.cut_frame(command.replica, _FRAME_CALLS, _FRAME_BYTES):
                    count = len(batch.payloads)
                    ids = list(range(batch.first_run_id, batch.first_run_id + count))
                    results.append((ids, list(batch.payloads), ""))
                for outcome in scheduler.step(RunsCompleted(command.replica, results, (), _CAPACITY), self._now):
                    if isinstance(outcome, DeliverResults):
                        answered += len(outcome.ids)
        return answered


def measure(*, rounds: int, decisions: int) -> list[Finding]:
    """Takes about `rounds * decisions * 40 µs`."""
    gc.collect()
    gc.freeze()
    try:
        rates = _rates((FEW, MANY), (FRAME_RUNS, 1), rounds, decisions)
        off = tap_cost.measure(rounds=rounds, decisions_per_s=max(rates[FEW, FRAME_RUNS]))
        return [*_findings(rates), off]
    finally:
        gc.unfreeze()


def _rates(
    sizes: Sequence[int], frames: Sequence[int], rounds: int, decisions: int
) -> dict[tuple[int, int], list[float]]:
    drives = {replicas: CoreDrive(replicas) for replicas in sizes}
    rates: dict[tuple[int, int], list[float]] = {}
    for number in range(rounds):
        show(f"core: round {number + 1} of {rounds}")
        for frame in frames:
            for replicas, drive in drives.items():
                gc.collect()  # nobody pays for what another one left
                rates.setdefault((replicas, frame), []).append(drive.decisions_per_s(decisions, frame))
    show("")
    return rates


def _findings(rates: dict[tuple[int, int], list[float]]) -> list[Finding]:
    best = {shape: max(each) for shape, each in rates.items()}
    growth = {frame: best[FEW, frame] / best[MANY, frame] for frame in (FRAME_RUNS, 1)}
    return [
        findings.at_least(
            "core_frames_few",
            f"decisions, {FEW} replicas, frames of {FRAME_RUNS} runs",
            best[FEW, FRAME_RUNS],
            LEAST_RATE,
            findings.rate,
        ),
        findings.figure("core_frames_many", f"the same with {MANY:,} replicas", best[MANY, FRAME_RUNS], findings.rate),
        findings.at_most(
            "core_frames_growth",
            f"cost with {MANY:,} replicas / with {FEW}",
            growth[FRAME_RUNS],
            MOST_GROWTH,
            findings.ratio,
        ),
        findings.figure("core_single_few", f"decisions, {FEW} replicas, one by one", best[FEW, 1], findings.rate),
        findings.figure("core_single_many", f"the same with {MANY:,} replicas", best[MANY, 1], findings.rate),
        findings.at_most(
            "core_single_growth", f"cost with {MANY:,} replicas / with {FEW}", growth[1], MOST_GROWTH, findings.ratio
        ),
    ]
