"""The client with large payloads: `python -m benchmarks.hauler ROUTER ENDPOINT METHOD BYTES COUNT`.

A process of its own. Each line on stdin starts a haul: COUNT calls with a payload of BYTES bytes, one after the other,
each of which comes back as it went. Then one line on stdout says how it went, as JSON. The end of stdin ends it.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from dataclasses import asdict, dataclass

import slotmesh
from benchmarks.workloads import PAYLOAD
from slotmesh.codec import OCTET_STREAM
from slotmesh.runtime.main import run


@dataclass(frozen=True, slots=True, kw_only=True)
class Haul:
    """How a haul went. Every payload came back."""

    payloads: int
    seconds: float


async def haul(method: slotmesh.Method[bytes], payload: bytes, count: int) -> Haul:
    """Raises what a call fails with, and ValueError where something else came back."""
    started = time.perf_counter()
    for _ in range(count):
        if await method(payload) != payload:
            raise ValueError(f"a payload of {len(payload)} bytes did not come back as it went")
    return Haul(payloads=count, seconds=time.perf_counter() - started)


async def main(router: str, endpoint: str, name: str, nbytes: int, count: int) -> None:
    async with slotmesh.connect(router) as mesh:
        method = mesh.endpoint(endpoint).options(content_type=OCTET_STREAM).method(name)
        await method(PAYLOAD)
        payload = os.urandom(nbytes)
        while await asyncio.to_thread(sys.stdin.readline):
            sys.stdout.write(f"{json.dumps(asdict(await haul(method, payload, count)))}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    _, given_router, given_endpoint, given_method, given_bytes, given_count = sys.argv
    run(
        lambda: main(given_router, given_endpoint, given_method, int(given_bytes), int(given_count)),
        log_level="warning",
    )
