"""One call at a time: what a stream through a router adds to a bare unary call, and what a direct lane leaves of it.

All take turns, so that what the machine does meanwhile meets all. There is nothing to gather: what is measured is the
way of a single call, client to router to replica and back, four processes' turns against two; on a direct lane, as on a
bare stream, it is two.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from statistics import median
from typing import Final

import slotmesh
from benchmarks import findings, workloads
from benchmarks.baseline import bare_server
from benchmarks.findings import Finding
from benchmarks.loads import HANDLER
from benchmarks.progress import show
from benchmarks.statistics import percentile
from benchmarks.workloads import ENDPOINT, METHOD
from examples.local_mesh import local_mesh
from slotmesh.codec import OCTET_STREAM
from slotmesh.runtime.channels import open_channel
from slotmesh.v1.router_service_pb2_grpc import RouterServiceStub

MOST_TIMES: Final = 1.5
MOST_TIMES_DIRECT: Final = 0.6
TURN_S: Final = 0.5
_WARM_UP_S: Final = 0.3


async def measure(*, rounds: int) -> list[Finding]:
    """A round is a turn of each."""
    async with AsyncExitStack() as stack:
        bare_address = await stack.enter_async_context(bare_server())
        mesh = await stack.enter_async_context(local_mesh(HANDLER))
        bare = RouterServiceStub(await stack.enter_async_context(open_channel(bare_address)))
        client = await stack.enter_async_context(slotmesh.connect(mesh.router))
        echo = client.endpoint(ENDPOINT).options(content_type=OCTET_STREAM)
        method = echo.method(METHOD)
        lane = (await stack.enter_async_context(echo.direct())).method(METHOD)
        await workloads.unary(bare, 1, _WARM_UP_S)
        await workloads.futures([method], 1, _WARM_UP_S)
        await workloads.futures([lane], 1, _WARM_UP_S)
        bare_s: list[float] = []
        stream_s: list[float] = []
        direct_s: list[float] = []
        for number in range(rounds):
            show(f"latency: round {number + 1} of {rounds}")
            bare_s.append(percentile(sorted((await workloads.unary(bare, 1, TURN_S)).latencies_s), 50))
            stream_s.append(percentile(sorted((await workloads.futures([method], 1, TURN_S)).latencies_s), 50))
            direct_s.append(percentile(sorted((await workloads.futures([lane], 1, TURN_S)).latencies_s), 50))
    show("")
    return found(bare_s, stream_s, direct_s)


def found(bare_s: list[float], stream_s: list[float], direct_s: list[float]) -> list[Finding]:
    """Of the medians of each round."""
    times_direct = median(direct / bare for bare, direct in zip(bare_s, direct_s, strict=True))
    times = median(stream / bare for bare, stream in zip(bare_s, stream_s, strict=True))
    return [
        findings.figure("latency_bare", "bare unary, one call at a time, p50", median(bare_s), findings.microseconds),
        findings.figure("latency_stream", "stream, one call at a time, p50", median(stream_s), findings.microseconds),
        findings.figure(
            "latency_direct", "direct lane, one call at a time, p50", median(direct_s), findings.microseconds
        ),
        findings.at_most("latency_ratio", "stream / bare", times, MOST_TIMES, findings.ratio),
        findings.at_most("latency_direct_ratio", "direct / bare", times_direct, MOST_TIMES_DIRECT, findings.ratio),
    ]
