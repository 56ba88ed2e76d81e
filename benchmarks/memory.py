"""What waiting calls cost a router: the growth of its memory by 100,000 queued calls of 100 bytes.

A router process whose backend has no replica takes them from several streams, each within its window. Twice: in batches
of 64, as clients send them, and as runs of one call each, the dearest there is.
"""

from __future__ import annotations

import asyncio
import re
from contextlib import AsyncExitStack
from typing import Final

from benchmarks import findings
from benchmarks.findings import Finding
from benchmarks.frames import frame_stream
from benchmarks.processes import ProcessMesh, process_mesh
from benchmarks.progress import show
from benchmarks.workloads import ENDPOINT, METHOD, PAYLOAD
from slotmesh.runtime.channels import open_channel
from slotmesh.runtime.exits import CannotStart
from slotmesh.spec.model import Backend, Endpoint, Mesh, TrafficPolicy

CALLS: Final = 100_000
FRAME_CALLS: Final = 1_024
BATCH_CALLS: Final = 64
MOST_BYTES: Final = 150e6
_QUEUED_TIMEOUT_S: Final = 60.0
_QUEUED: Final = re.compile(r"^slotmesh_router_queued\w*{[^}]*} (\S+)$", re.MULTILINE)

SPEC: Final = Mesh(
    backends=(Backend(name=ENDPOINT, num_replicas=0, handler="", max_queued_calls=2 * CALLS, max_queue_time_s=600.0),),
    endpoints=(Endpoint(name=ENDPOINT, traffic=TrafficPolicy(weights={ENDPOINT: 1.0})),),
)


async def measure() -> list[Finding]:
    """A fresh router for each, because memory that was used once is not always given back."""
    batches = await _growth(BATCH_CALLS)
    singles = await _growth(1)
    return [
        findings.at_most(
            "memory_batches",
            f"router's memory for {CALLS:,} queued calls, batches of {BATCH_CALLS}",
            batches,
            MOST_BYTES,
            findings.megabytes,
        ),
        findings.at_most("memory_singles", "the same, a run for each call", singles, MOST_BYTES, findings.megabytes),
    ]


async def _growth(batch: int) -> int:
    async with process_mesh(SPEC, launcher="external") as mesh, AsyncExitStack() as stack:
        router = mesh.routers[0]
        await _queued(mesh)  # what a scrape leaves behind is not the queue's
        before = router.rss_bytes()
        left = CALLS
        while left:
            channel = await stack.enter_async_context(open_channel(router.address))
            stream = await stack.enter_async_context(frame_stream(channel, ENDPOINT, METHOD))
            room = min(left, stream.window.calls)
            left -= room
            while room:
                count = min(room, FRAME_CALLS)
                await stream.send([PAYLOAD] * count, batch=batch)
                room -= count
            show(f"memory: {CALLS - left:,} calls sent in batches of {batch}")
        async with asyncio.timeout(_QUEUED_TIMEOUT_S):
            while (queued := await _queued(mesh)) < CALLS:
                show(f"memory: {queued:,} calls queued")
        show("")
        return router.rss_bytes() - before


async def _queued(mesh: ProcessMesh) -> int:
    """Calls that wait at the router, as it says itself."""
    found = _QUEUED.search(await mesh.scrape(mesh.routers[0]))
    if found is None:
        raise CannotStart("the router exports no queue length")
    return int(float(found[1]))
