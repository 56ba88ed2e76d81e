"""One client floods, another one makes one call at a time: what the second one notices.

Three times: the handler sleeps, so that slots are the limit, and the flood keeps the queue as deep as its window is;
the same with a shorter queue, so that most of the flood is refused and comes again; and with a handler that does
nothing, so that the processors are the limit. The clients are processes of their own, as clients are: who floods does
not slow down the other one's event loop.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Final

import slotmesh
from benchmarks import findings
from benchmarks.findings import Finding
from benchmarks.flooder import Flood
from benchmarks.one_caller import OneCaller
from benchmarks.processes import process_mesh
from benchmarks.progress import show
from benchmarks.statistics import percentile
from benchmarks.workloads import METHOD
from slotmesh.codec import OCTET_STREAM
from slotmesh.runtime.exits import CannotStart
from slotmesh.spec.model import Backend, Endpoint, Mesh, TrafficPolicy

CALLS: Final = 100_000
MOST_DELAY_S: Final = 0.050
WIDE: Final = "wide"
NARROW: Final = "narrow"
ECHO: Final = "echo"
TITLES: Final = {
    WIDE: "slots are the limit",
    NARROW: "a short queue, too",
    ECHO: "processors are the limit",
}
NAP_S: Final = 0.01
NARROW_CALLS: Final = 4_096
"""Less than a client's window."""

_NAP: Final = Backend(
    name=WIDE, handler="benchmarks.handler:Nap", num_replicas=2, max_ongoing=64, user_config={"seconds": NAP_S}
)
BACKENDS: Final = {
    WIDE: _NAP,
    NARROW: replace(_NAP, name=NARROW, max_queued_calls=NARROW_CALLS),
    ECHO: Backend(name=ECHO, handler="benchmarks.handler:Echo"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FloodOutcome:
    """What the client with one call at a time saw."""

    quiet_s: list[float]
    """Times of its calls before the flood, ascending."""
    beside_s: list[float]
    """The same during the flood, without the one that met its end."""
    failures: list[BaseException]
    floods: list[Flood]


async def measure(*, calls: int = CALLS, floods: int = 5, quiet_s: float = 5.0) -> list[Finding]:
    """The short floods, those that the processors limit, come `floods` times."""
    found: list[Finding] = []
    for endpoint, title in TITLES.items():
        times = floods if endpoint == ECHO else 1
        show(f"flood: {title}")
        outcome = await one_beside_many(endpoint, calls=calls, floods=times, quiet_s=quiet_s)
        quiet, beside = percentile(outcome.quiet_s, 99), percentile(outcome.beside_s, 99)
        seconds = sum(flood.seconds for flood in outcome.floods)
        refused = sum(flood.refused for flood in outcome.floods)
        found += [
            findings.figure(
                f"flood_{endpoint}_rate",
                f"{times} × {calls:,} calls, {title} ({refused:,} refusals)",
                calls * times / seconds,
                findings.rate,
            ),
            findings.figure(f"flood_{endpoint}_quiet", "one call at a time, quiet, p99", quiet, findings.milliseconds),
            findings.figure(
                f"flood_{endpoint}_p50",
                "beside the flood, p50",
                percentile(outcome.beside_s, 50),
                findings.milliseconds,
            ),
            findings.at_most(
                f"flood_{endpoint}_p99",
                f"beside the flood, p99 of {len(outcome.beside_s):,}, over quiet p99",
                beside - quiet,
                MOST_DELAY_S,
                findings.milliseconds,
            ),
            findings.at_most(
                f"flood_{endpoint}_failures", "failures of the one call", len(outcome.failures), 0, findings.count
            ),
        ]
    show("")
    return found


async def one_beside_many(endpoint: str, *, calls: int, floods: int = 1, quiet_s: float = 0.0) -> FloodOutcome:
    """Quiet for a while, then the flood, `floods` times in a row. `endpoint` is one of `BACKENDS`."""
    policy = TrafficPolicy(weights={endpoint: 1.0})
    spec = Mesh(backends=(BACKENDS[endpoint],), endpoints=(Endpoint(name=endpoint, traffic=policy),))
    async with process_mesh(spec) as mesh:
        address = mesh.routers[0].address
        async with slotmesh.connect(address) as client, _flooder(address, endpoint, calls) as flooder:
            one = OneCaller(client.endpoint(endpoint).options(content_type=OCTET_STREAM).method(METHOD))
            quiet: list[float] = []
            until = time.perf_counter() + quiet_s
            while time.perf_counter() < until:
                await one.call(quiet)
            beside: list[float] = []
            told: list[Flood] = []
            for _ in range(floods):
                flooding = asyncio.ensure_future(flooder.flood())
                while not flooding.done():
                    during: list[float] = []
                    await one.call(during)
                    if not flooding.done():
                        beside += during
                told.append(await flooding)
            return FloodOutcome(quiet_s=sorted(quiet), beside_s=sorted(beside), failures=one.failures, floods=told)


class _Flooder:
    def __init__(self, process: Process) -> None:
        self._process = process

    async def flood(self) -> Flood:
        """Starts one, and returns when it is over."""
        if self._process.stdin is None or self._process.stdout is None:
            raise AssertionError("asked for pipes")
        self._process.stdin.write(b"\n")
        line = await self._process.stdout.readline()
        if not line:
            raise CannotStart("the client that floods has ended; why is above")
        return Flood(**json.loads(line))


@asynccontextmanager
async def _flooder(address: str, endpoint: str, calls: int) -> AsyncIterator[_Flooder]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.flooder", address, endpoint, METHOD, str(calls)), stdin=PIPE, stdout=PIPE
    )
    try:
        yield _Flooder(process)
    finally:
        if process.stdin is not None:
            process.stdin.close()
        await process.wait()
