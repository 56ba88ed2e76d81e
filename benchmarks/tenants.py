"""Two tenants of one client: one sends many calls at once, the other makes one call at a time.

What the second one waits with and without tenants named, and with a client of its own, where slots are the limit. All
calls are made by one process: a web front that calls for many users.
"""

from __future__ import annotations

import asyncio
from typing import Final

import slotmesh
from benchmarks import findings
from benchmarks.findings import Finding
from benchmarks.flood import BACKENDS, WIDE
from benchmarks.one_caller import OneCaller
from benchmarks.processes import process_mesh
from benchmarks.progress import show
from benchmarks.statistics import percentile
from benchmarks.workloads import METHOD, PAYLOAD
from slotmesh.codec import OCTET_STREAM
from slotmesh.spec.model import Endpoint, Mesh, TrafficPolicy

CALLS: Final = 50_000
MOST_TIMES: Final = 2.0
"""How many times as long as with a client of its own a tenant may wait."""


async def measure(*, calls: int = CALLS) -> list[Finding]:
    spec = Mesh(
        backends=(BACKENDS[WIDE],), endpoints=(Endpoint(name=WIDE, traffic=TrafficPolicy(weights={WIDE: 1.0})),)
    )
    show("tenants")
    async with process_mesh(spec) as mesh:
        address = mesh.routers[0].address
        async with slotmesh.connect(address) as client, slotmesh.connect(address) as another:
            unnamed = await _beside(client, "", client, "", calls)
            named = await _beside(client, "flood", client, "one", calls)
            apart = await _beside(client, "", another, "", calls)
    show("")
    p99 = {name: percentile(times, 99) for name, times in (("unnamed", unnamed), ("named", named), ("apart", apart))}
    return [
        findings.figure("tenants_unnamed", "same client, no tenants, p99", p99["unnamed"], findings.milliseconds),
        findings.figure("tenants_apart", "a client of its own, p99", p99["apart"], findings.milliseconds),
        findings.figure("tenants_named", "a tenant of its own, p99", p99["named"], findings.milliseconds),
        findings.at_most(
            "tenants_times",
            "as many times as with a client of its own",
            p99["named"] / p99["apart"],
            MOST_TIMES,
            _times,
        ),
    ]


async def _beside(flooding: slotmesh.Mesh, flood: str, calling: slotmesh.Mesh, tenant: str, calls: int) -> list[float]:
    """The times of one caller's calls beside a flood, ascending, both on behalf of these tenants."""
    many = flooding.endpoint(WIDE).options(content_type=OCTET_STREAM, tenant=flood).method(METHOD)
    one = OneCaller(calling.endpoint(WIDE).options(content_type=OCTET_STREAM, tenant=tenant).method(METHOD))
    await one.call([])
    times: list[float] = []
    sent = many.map([PAYLOAD] * calls)
    await asyncio.sleep(0.1)  # the flood is under way
    while not sent.done():
        during: list[float] = []
        await one.call(during)
        if not sent.done():
            times += during
    await sent
    if one.failures:
        raise one.failures[0]
    return sorted(times)


def _times(value: float) -> str:
    return f"{value:.2f}"
