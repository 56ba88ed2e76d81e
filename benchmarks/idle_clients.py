"""Sessions that do nothing: `python -m benchmarks.idle_clients ROUTER ENDPOINT METHOD SESSIONS`, a process of its own.

Each session is a client of the SDK with a connection of its own. It makes one call and is idle from then on. A line on
stdout reports that all have made theirs; the end of stdin ends the process.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import AsyncExitStack

import slotmesh
from benchmarks.workloads import PAYLOAD
from slotmesh.codec import OCTET_STREAM
from slotmesh.runtime.main import run


async def main(router: str, endpoint: str, name: str, sessions: int) -> None:
    async with AsyncExitStack() as stack:
        for _ in range(sessions):
            mesh = await stack.enter_async_context(slotmesh.connect(router))
            await mesh.endpoint(endpoint).options(content_type=OCTET_STREAM).method(name)(PAYLOAD)
        sys.stdout.write("idle\n")
        sys.stdout.flush()
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    _, given_router, given_endpoint, given_method, given_sessions = sys.argv
    run(lambda: main(given_router, given_endpoint, given_method, int(given_sessions)), log_level="warning")
