"""An application that uses slotmesh and sets nothing. A script, of no package, so that nothing is set for it.

`python benchmarks/application.py ROUTER LOOP SECONDS` prints calls a second of each load, as JSON. `LOOP` is `asyncio`,
or `uvloop`.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import deque

import uvloop

import slotmesh

PAYLOAD = b"x" * 100
IN_FLIGHT = 512
MAP_CALLS = 1_024


async def main(router: str, seconds: float) -> dict[str, float]:
    async with slotmesh.connect(router) as mesh:
        method = mesh.endpoint("Echo").options(content_type="application/octet-stream").echo
        await _futures(method, IN_FLIGHT, seconds / 5)
        return {
            "futures": await _futures(method, IN_FLIGHT, seconds),
            "map": await _maps(method, seconds),
            "single": await _futures(method, 1, seconds),
        }


async def _futures(method: slotmesh.Method[bytes], in_flight: int, seconds: float) -> float:
    pending: deque[asyncio.Future[bytes]] = deque(method(PAYLOAD) for _ in range(in_flight))
    calls, started = 0, time.perf_counter()
    while pending:
        await pending.popleft()
        calls += 1
        if time.perf_counter() < started + seconds:
            pending.append(method(PAYLOAD))
    return calls / (time.perf_counter() - started)


async def _maps(method: slotmesh.Method[bytes], seconds: float) -> float:
    payloads, calls, started = [PAYLOAD] * MAP_CALLS, 0, time.perf_counter()

    async def again() -> None:
        nonlocal calls
        while time.perf_counter() < started + seconds:
            await method.map(payloads)
            calls += MAP_CALLS

    await asyncio.gather(again(), again())
    return calls / (time.perf_counter() - started)


if __name__ == "__main__":
    router_, loop_, seconds_ = sys.argv[1:]
    program = main(router_, float(seconds_))
    sys.stdout.write(json.dumps(uvloop.run(program) if loop_ == "uvloop" else asyncio.run(program)))
