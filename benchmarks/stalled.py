"""A client that does not read: what it costs router and replica, and what a bystander notices.

One stream of a session, with a window of 100,000 calls, sends them all and then reads nothing for a while, though all
results are due. What servers hold for it is bounded; others go on. In the end it reads, and every result is there.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

import slotmesh
from benchmarks import findings
from benchmarks.findings import Finding
from benchmarks.frames import FrameStream, frame_stream
from benchmarks.one_caller import OneCaller
from benchmarks.processes import MeshProcess, process_mesh
from benchmarks.progress import show
from benchmarks.statistics import percentile
from benchmarks.workloads import ENDPOINT, METHOD, PAYLOAD
from slotmesh.codec import OCTET_STREAM
from slotmesh.convert.batches import ids_from_wire, ids_of_results
from slotmesh.runtime.channels import open_channel
from slotmesh.spec.model import Backend, Endpoint, Mesh, TrafficPolicy

CALLS: Final = 100_000
FRAME_CALLS: Final = 1_024
WINDOW_BYTES: Final = 64 * 1024 * 1024
MOST_GROWTH_BYTES: Final = 64e6
MOST_DELAY_S: Final = 0.050
WARM_UP_CALLS: Final = 20_000
"""Of a client that reads: what servers keep of their first load is not counted."""
_EVERY_S: Final = 0.05
_READ_TIMEOUT_S: Final = 60.0

SPEC: Final = Mesh(
    backends=(Backend(name=ENDPOINT, handler="benchmarks.handler:Echo", max_queued_calls=2 * CALLS),),
    endpoints=(Endpoint(name=ENDPOINT, traffic=TrafficPolicy(weights={ENDPOINT: 1.0})),),
)


@dataclass(slots=True, kw_only=True)
class StalledOutcome:
    """What came of it."""

    quiet_s: list[float]
    """The bystander's times before, ascending."""
    beside_s: list[float]
    """And from the first call of the one that does not read on, until it reads."""
    failures: int
    """Of the bystander."""
    growth_bytes: dict[str, int] = field(default_factory=dict)
    """By server: the most that it had more than before."""
    reading_bytes: dict[str, int] = field(default_factory=dict)
    """The same while everything is read at last."""
    wrong: int = 0
    """Calls with no result, or with two."""


async def measure(*, stalled_s: float, quiet_s: float) -> list[Finding]:
    """`stalled_s`: how long the client does not read."""
    return found(await one_that_does_not_read(stalled_s=stalled_s, quiet_s=quiet_s), stalled_s)


async def one_that_does_not_read(*, stalled_s: float, quiet_s: float, calls: int = CALLS) -> StalledOutcome:
    async with process_mesh(SPEC, routers=0) as mesh, AsyncExitStack() as stack:
        window = (f"--window-calls={calls}", f"--window-bytes={WINDOW_BYTES}B")
        router = await mesh.add_router(*window, "--metrics-port=-1")
        await mesh.wait_ready()
        servers: dict[str, MeshProcess] = {"router": router, "replica": (await mesh.replicas())[0]}
        client = await stack.enter_async_context(slotmesh.connect(router.address))
        method = client.endpoint(ENDPOINT).options(content_type=OCTET_STREAM).method(METHOD)
        await method.map([PAYLOAD] * min(calls, WARM_UP_CALLS))
        one = OneCaller(method)
        show("stalled: the bystander alone")
        outcome = StalledOutcome(quiet_s=await one.calls_for(quiet_s), beside_s=[], failures=0)
        channel = await stack.enter_async_context(open_channel(router.address))
        stream = await stack.enter_async_context(frame_stream(channel, ENDPOINT, METHOD, in_session=True))
        before = {name: server.rss_bytes() for name, server in servers.items()}
        async with one.calling(outcome.beside_s), _highest(servers, before, outcome.growth_bytes):
            show(f"stalled: {calls:,} calls, and nobody reads")
            until = time.perf_counter() + stalled_s
            for at in range(0, calls, FRAME_CALLS):
                await stream.send([PAYLOAD] * min(FRAME_CALLS, calls - at))
            await asyncio.sleep(max(0.0, until - time.perf_counter()))
        outcome.beside_s.sort()
        outcome.failures = len(one.failures)
        async with _highest(servers, before, outcome.reading_bytes), asyncio.timeout(_READ_TIMEOUT_S):
            show("stalled: it reads")
            outcome.wrong = await _read_all(stream, calls)
    show("")
    return outcome


def found(outcome: StalledOutcome, stalled_s: float) -> list[Finding]:
    quiet, beside = percentile(outcome.quiet_s, 99), percentile(outcome.beside_s, 99)
    growth, reading = outcome.growth_bytes, outcome.reading_bytes
    return [
        *(
            findings.at_most(
                f"stalled_{server}",
                f"growth of the {server}, {CALLS:,} results that nobody reads for {stalled_s:g} s",
                growth[server],
                MOST_GROWTH_BYTES,
                findings.megabytes,
            )
            for server in growth
        ),
        *(
            findings.figure(
                f"stalled_{server}_reading", f"the {server}'s while they are read", nbytes, findings.megabytes
            )
            for server, nbytes in reading.items()
        ),
        findings.at_most("stalled_wrong", "of them with no result, or with two", outcome.wrong, 0, findings.count),
        findings.figure("stalled_quiet", "bystander, one call at a time, before, p99", quiet, findings.milliseconds),
        findings.at_most(
            "stalled_p99",
            f"meanwhile, p99 of {len(outcome.beside_s):,}, over that",
            beside - quiet,
            MOST_DELAY_S,
            findings.milliseconds,
        ),
        findings.at_most("stalled_failures", "failures of the bystander", outcome.failures, 0, findings.count),
    ]


async def _read_all(stream: FrameStream, calls: int) -> int:
    """Reads and acknowledges until every call has its outcome; returns how many have no result, or two."""
    results = bytearray(calls + 1)
    left = calls
    while left > 0:
        response = await stream.read()
        if response is None:
            break
        frame = response.results
        for batch in frame.batches:
            left -= len(ids_of_results(batch))
            for call_id in ids_of_results(batch):
                results[call_id] = min(results[call_id] + 1, 2)
        left -= sum(len(ids_from_wire(errors.calls)) for errors in frame.errors)
        if frame.frame_no:
            await stream.acknowledge(frame.frame_no)
    return calls - results.count(1, 1)


@asynccontextmanager
async def _highest(
    servers: dict[str, MeshProcess], before: dict[str, int], into: dict[str, int]
) -> AsyncIterator[None]:
    """Looks at the servers' memory for as long as the block lasts."""

    def look() -> None:
        for name, server in servers.items():
            into[name] = max(into.get(name, 0), server.rss_bytes() - before[name])

    async def go_on() -> None:
        while True:
            look()
            await asyncio.sleep(_EVERY_S)

    task = asyncio.ensure_future(go_on())
    try:
        yield
    finally:
        task.cancel()
        look()
