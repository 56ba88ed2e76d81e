"""One call at a time, hop by hop: where the time until the result goes, and in how many calls of functions.

Two meshes, one after the other: in the first one times are taken, in the second one calls of Python functions are
counted, which would spoil the times. What lies between writing a frame and reading it is gRPC's and the kernel's, with
the threads and processes that wake; the rest is ours.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

import slotmesh
from benchmarks import findings, hop_stamps, workloads
from benchmarks.baseline import bare_server
from benchmarks.findings import Finding
from benchmarks.hop_stamps import WAY, HopRecorder, Stamp, left_stamps, stamping
from benchmarks.profiling import environment_of_children
from benchmarks.progress import show
from benchmarks.statistics import percentile
from benchmarks.workloads import METHOD, PAYLOAD
from examples.local_mesh import local_mesh
from slotmesh.codec import OCTET_STREAM
from slotmesh.runtime.channels import open_channel
from slotmesh.v1.router_service_pb2_grpc import RouterServiceStub

HANDLER: Final = "benchmarks.stamped_handler:StampedEcho"
TURN_S: Final = 0.5
_WARM_UP_CALLS: Final = 300

HOPS: Final = (
    ("client_out", "client: call made → frame to gRPC"),
    ("to_router", "  gRPC → router"),
    ("router_out", "router: calls read → frame to gRPC"),
    ("to_replica", "  gRPC → replica"),
    ("replica_in", "replica: frame read → handler begins"),
    ("replica_out", "replica: handler begins → frame to gRPC"),
    ("from_replica", "  gRPC → router"),
    ("router_back", "router: results read → frame to gRPC"),
    ("to_client", "  gRPC → client"),
    ("client_in", "client: results read → caller has its result"),
)
"""Name and title of what lies between one stamp of `WAY` and the next one."""
OURS: Final = frozenset({"client_out", "router_out", "replica_in", "replica_out", "router_back", "client_in"})
"""Hops within a process."""


@dataclass(frozen=True, slots=True)
class StampedCall:
    """One call, with a stamp for each of `WAY`."""

    stamps: tuple[Stamp, ...]

    def seconds(self, hop: int) -> float:
        return (self.stamps[hop + 1].at_ns - self.stamps[hop].at_ns) / 1e9

    def calls(self, hop: int) -> int:
        return self.stamps[hop + 1].calls - self.stamps[hop].calls

    def steps(self, hop: int) -> int:
        return self.stamps[hop + 1].steps - self.stamps[hop].steps


async def measure(*, rounds: int) -> list[Finding]:
    """A round is a turn of the bare server, and one of the mesh."""
    bare_s, timed = await _run(rounds, counts=False)
    _, counted = await _run(1, counts=True)
    return found(bare_s, timed, counted)


async def _run(rounds: int, *, counts: bool) -> tuple[list[float], list[StampedCall]]:
    """Medians of the bare server, and the calls of one mesh."""
    bare_s: list[float] = []
    with tempfile.TemporaryDirectory(prefix="slotmesh-hops-") as folder:
        wanted = {"BENCHMARK_HOPS_FOLDER": folder} | ({"BENCHMARK_HOPS_COUNT": "1"} if counts else {})
        with environment_of_children(wanted), stamping(["client"], counts=counts) as client:
            async with AsyncExitStack() as stack:
                bare_address = await stack.enter_async_context(bare_server())
                mesh = await stack.enter_async_context(local_mesh(HANDLER))
                bare = RouterServiceStub(await stack.enter_async_context(open_channel(bare_address)))
                connected = await stack.enter_async_context(slotmesh.connect(mesh.router))
                method = connected.endpoint(mesh.name).options(content_type=OCTET_STREAM).method(METHOD)
                for _ in range(_WARM_UP_CALLS):
                    await method(PAYLOAD)
                for number in range(rounds):
                    show(f"hops: {'calls of functions' if counts else 'times'}, round {number + 1} of {rounds}")
                    sample = await workloads.unary(bare, 1, TURN_S)
                    bare_s.append(percentile(sorted(sample.latencies_s), 50))
                    await _one_at_a_time(method, client)
            show("")
        served = [left_stamps(Path(folder), role) for role in ("router", "replica")]
    return bare_s, calls_of([client.stamps, *served])


async def _one_at_a_time(method: slotmesh.Method[bytes], client: HopRecorder) -> None:
    until = time.perf_counter() + TURN_S
    while time.perf_counter() < until:
        client.stamp(hop_stamps.CALLED)
        await method(PAYLOAD)
        client.stamp(hop_stamps.RESOLVED)


def calls_of(processes: Sequence[Sequence[Stamp]]) -> list[StampedCall]:
    """The calls that have each stamp once, in the order of `WAY`."""
    calls: list[StampedCall] = []
    stamps: list[Stamp] = []
    for each in sorted((stamp for process in processes for stamp in process), key=lambda stamp: stamp.at_ns):
        if each.name == hop_stamps.CALLED:
            stamps = []
        stamps.append(each)
        if each.name == hop_stamps.RESOLVED and tuple(stamp.name for stamp in stamps) == WAY:
            calls.append(StampedCall(tuple(stamps)))
    return calls


def found(bare_s: Sequence[float], timed: Sequence[StampedCall], counted: Sequence[StampedCall]) -> list[Finding]:
    """Medians. `counted`: calls made while calls of functions were counted.

    Raises:
        ValueError: there are no such calls.
    """
    if not (bare_s and timed and counted):
        raise ValueError("no call has a stamp at each hop: a function that is wrapped is not called any more")
    every = range(len(HOPS))
    ours = [at for at, (name, _) in enumerate(HOPS) if name in OURS]
    bare, whole = median(bare_s), _seconds(timed, every)
    rows = [_row(f"hops_{name}", title, timed, counted, [at]) for at, (name, title) in enumerate(HOPS)]
    calls = median(sum(map(each.calls, ours)) for each in counted)
    return [
        *rows,
        _row("hops_own", "of it in our processes", timed, counted, ours),
        findings.figure("hops_own_calls", "calls of Python functions in these", calls, findings.count),
        findings.figure("hops_whole", "all of it", whole, findings.microseconds),
        findings.figure("hops_bare", "bare unary", bare, findings.microseconds),
        findings.figure("hops_ratio", "all of it / bare", whole / bare, findings.ratio),
    ]


def _row(
    name: str, title: str, timed: Sequence[StampedCall], counted: Sequence[StampedCall], hops: Sequence[int]
) -> Finding:
    """Of hops within processes, what Python did as well: calls of functions, and how often the loop began them."""
    text = findings.microseconds(_seconds(timed, hops))
    if all(HOPS[at][0] in OURS for at in hops):
        calls = median(sum(map(each.calls, hops)) for each in counted)
        steps = median(sum(map(each.steps, hops)) for each in counted)
        text = f"{text}  {calls:4.0f} calls  {steps:2.0f} steps"
    else:
        text = f"{text}{'':22}"
    return findings.figure(name, title, _seconds(timed, hops), lambda _: text)


def _seconds(timed: Sequence[StampedCall], hops: Sequence[int]) -> float:
    return median(sum(map(each.seconds, hops)) for each in timed)
