"""The client that floods: `python -m benchmarks.flooder ROUTER ENDPOINT METHOD CALLS`, a process of its own.

Each line on stdin starts a flood: all calls at once, those that are refused once more when their refusal says so, until
each is answered. Then one line on stdout says how it went, as JSON. The end of stdin ends it.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from dataclasses import asdict, dataclass

import slotmesh
from benchmarks.workloads import PAYLOAD
from slotmesh.codec import OCTET_STREAM
from slotmesh.runtime.main import run

_RETRY_S = 0.05
"""Where a refusal does not say when."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Flood:
    """How a flood went. Every one of its calls was answered."""

    calls: int
    refused: int
    """Calls that were refused at first, once for each time."""
    seconds: float


async def flood(method: slotmesh.Method[bytes], calls: int) -> Flood:
    """Returns when all are answered. Raises what a call fails with that is no refusal."""
    refused, left = 0, calls
    started = time.perf_counter()
    while left:
        outcomes = await method.map([PAYLOAD] * left, return_exceptions=True)
        failures: list[slotmesh.QueueFull] = []
        for outcome in outcomes:
            if isinstance(outcome, slotmesh.QueueFull):
                failures.append(outcome)
            elif isinstance(outcome, BaseException):
                raise outcome
        left = len(failures)
        refused += left
        if failures:
            await asyncio.sleep(min(failure.retry_delay_s or _RETRY_S for failure in failures))
    return Flood(calls=calls, refused=refused, seconds=time.perf_counter() - started)


async def main(router: str, endpoint: str, name: str, calls: int) -> None:
    async with slotmesh.connect(router) as mesh:
        method = mesh.endpoint(endpoint).options(content_type=OCTET_STREAM).method(name)
        await method(PAYLOAD)
        while await asyncio.to_thread(sys.stdin.readline):
            sys.stdout.write(f"{json.dumps(asdict(await flood(method, calls)))}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    _, given_router, given_endpoint, given_method, given_calls = sys.argv
    run(lambda: main(given_router, given_endpoint, given_method, int(given_calls)), log_level="warning")
