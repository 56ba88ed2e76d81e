"""Large payloads in flight, one after the other, and beside them one small call at a time on another stream.

The payload is the largest that the router takes, 64 MiB at most, and comes back as it went. Its client is a process of
its own: what sending it costs is not the small calls' client's. Quiet and disturbed turns alternate.
"""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

import slotmesh
from benchmarks import findings
from benchmarks.findings import Finding
from benchmarks.frames import frame_stream
from benchmarks.hauler import Haul
from benchmarks.one_caller import OneCaller
from benchmarks.processes import process_mesh
from benchmarks.progress import show
from benchmarks.statistics import percentile
from benchmarks.workloads import ENDPOINT, METHOD
from slotmesh.codec import OCTET_STREAM
from slotmesh.runtime.channels import open_channel
from slotmesh.runtime.exits import CannotStart
from slotmesh.spec.model import Backend, Endpoint, Mesh, TrafficPolicy

LARGEST_BYTES: Final = 64 * 1024 * 1024
HAUL_BYTES: Final = 512 * 1024 * 1024
"""What goes there, and comes back, in one turn."""
MOST_DELAY_S: Final = 0.010
WINDOW_BYTES: Final = 2 * LARGEST_BYTES

SPEC: Final = Mesh(
    backends=(Backend(name=ENDPOINT, handler="benchmarks.handler:Echo"),),
    endpoints=(Endpoint(name=ENDPOINT, traffic=TrafficPolicy(weights={ENDPOINT: 1.0})),),
)


async def measure(*, rounds: int, quiet_s: float, haul_bytes: int = HAUL_BYTES) -> list[Finding]:
    """A round is `quiet_s` seconds without large payloads, then `haul_bytes` of them."""
    quiet_s_of: list[float] = []
    beside_s: list[float] = []
    hauls: list[Haul] = []
    async with process_mesh(SPEC, routers=0) as mesh, AsyncExitStack() as stack:
        router = await mesh.add_router(
            f"--window-bytes={WINDOW_BYTES}B", f"--max-upload-bytes={2 * WINDOW_BYTES}B", "--metrics-port=-1"
        )
        await mesh.wait_ready()
        channel = await stack.enter_async_context(open_channel(router.address))
        async with frame_stream(channel, ENDPOINT, METHOD) as stream:
            nbytes = min(stream.max_payload_bytes, LARGEST_BYTES)
        count = max(1, haul_bytes // nbytes)
        client = await stack.enter_async_context(slotmesh.connect(router.address))
        one = OneCaller(client.endpoint(ENDPOINT).options(content_type=OCTET_STREAM).method(METHOD))
        hauler = await stack.enter_async_context(_hauler(router.address, nbytes, count))
        for number in range(rounds):
            show(f"large: round {number + 1} of {rounds}")
            quiet_s_of += await one.calls_for(quiet_s)
            async with one.calling(beside_s):
                hauls.append(await hauler.haul())
    show("")
    return found(nbytes, sorted(quiet_s_of), sorted(beside_s), hauls, len(one.failures))


def found(nbytes: int, quiet_s: list[float], beside_s: list[float], hauls: list[Haul], failures: int) -> list[Finding]:
    quiet, beside = percentile(quiet_s, 99), percentile(beside_s, 99)
    moved = sum(haul.payloads for haul in hauls) * nbytes / sum(haul.seconds for haul in hauls)
    return [
        findings.figure("large_bytes", "size of the large payloads", nbytes, findings.megabytes),
        findings.figure("large_rate", "of them there and back, a second", moved, findings.megabytes),
        findings.figure("large_quiet", "one small call at a time, quiet, p99", quiet, findings.milliseconds),
        findings.figure("large_p50", "beside the large ones, p50", percentile(beside_s, 50), findings.milliseconds),
        findings.at_most(
            "large_p99",
            f"beside them, p99 of {len(beside_s):,}, over quiet p99",
            beside - quiet,
            MOST_DELAY_S,
            findings.milliseconds,
        ),
        findings.at_most("large_failures", "failures of the small calls", failures, 0, findings.count),
    ]


class _Hauler:
    def __init__(self, process: Process) -> None:
        self._process = process

    async def haul(self) -> Haul:
        """Starts one, and returns when it is over."""
        if self._process.stdin is None or self._process.stdout is None:
            raise AssertionError("asked for pipes")
        self._process.stdin.write(b"\n")
        line = await self._process.stdout.readline()
        if not line:
            raise CannotStart("the client with the large payloads has ended; why is above")
        return Haul(**json.loads(line))


@asynccontextmanager
async def _hauler(address: str, nbytes: int, count: int) -> AsyncIterator[_Hauler]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.hauler", address, ENDPOINT, METHOD, str(nbytes), str(count)),
        stdin=PIPE,
        stdout=PIPE,
    )
    try:
        yield _Hauler(process)
    finally:
        if process.stdin is not None:
            process.stdin.close()
        await process.wait()
