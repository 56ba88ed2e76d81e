"""Floods of an ingress by one address: bodies that do not end, large calls that run long, connections, made-up tokens.

A bystander of another address makes one small request at a time, by an ingress of its own process. None of its requests
may be refused or fail; its latencies are told, before and during each flood.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

from tests.attacks.attack import Attack, scaled
from tests.attacks.bystander import PAUSE_S, Times
from tests.attacks.target import Target
from tests.support.http_client import HttpConnection, http_connection, request_bytes
from tests.support.mesh import ROOT
from tests.support.wait import within

FLOODER, BYSTANDER = "127.0.0.2", "127.0.0.3"
BODIES, BODY_BYTES = 4, 64 * 2**20
LARGE_CALLS, LARGE_BYTES = 4, 5 * 10**6
CONNECTIONS: Final = 2_000
TOKENS: Final = 256
LOOKED_AT_S: Final = 8.0
_START_S: Final = 30.0
_OCTETS: Final = {"content-type": "application/octet-stream"}
_URL: Final = re.compile(rb"https?://([\d.]+:\d+)")


@asynccontextmanager
async def ingress_of(target: Target) -> AsyncIterator[str]:
    """The address of an ingress, in a process of its own."""
    flags = ["--port=0", "--metrics-port=-1", f"--routers={target.router}", "--log-level=info"]
    flags += [f"--controller={target.mesh.controller_address}"]
    if target.directory is not None:
        flags += [f"--tls-dir={target.directory}", "--anonymous"]
    env = {name: value for name, value in os.environ.items() if not name.startswith("SLOTMESH_")}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "ingress_service", *flags), cwd=ROOT, env=env, stdout=DEVNULL, stderr=PIPE
    )
    assert process.stderr is not None
    reading = None
    try:
        async with asyncio.timeout(_START_S):
            while (found := _URL.search(line := await process.stderr.readline())) is None:
                assert line, "the ingress has ended"
        reading = asyncio.ensure_future(process.stderr.read())
        yield found[1].decode()
    finally:
        process.terminate()
        await within(process.wait(), "the end of the process", timeout=60.0)
        if reading is not None:
            await reading


class Flood(AsyncExitStack):
    """Connections of the flooder."""

    def __init__(self, address: str, scale: float) -> None:
        super().__init__()
        self.address = address
        self.scale = scale
        self.refused = 0

    async def connection(self) -> HttpConnection:
        return await self.enter_async_context(http_connection(self.address, local_addr=(FLOODER, 0)))

    async def bodies(self) -> None:
        """All but the last byte of each."""
        size = scaled(BODY_BYTES, self.scale, 2**20)
        for _ in range(BODIES):
            connection = await self.connection()
            head = request_bytes("POST", "/Attacked/echo", headers={**_OCTETS, "content-length": str(size)})
            try:
                await connection.send(head + b"x" * (size - 1))
            except ConnectionError:
                self.refused += 1

    async def large_calls(self) -> None:
        for _ in range(LARGE_CALLS):
            body = b"x" * scaled(LARGE_BYTES, self.scale, 300_000)
            await (await self.connection()).send(request_bytes("POST", "/Attacked/slow", body, _OCTETS))

    async def connections(self) -> None:
        for _ in range(scaled(CONNECTIONS, self.scale, 20)):
            await self.connection()

    async def tokens(self) -> None:
        for number in range(scaled(TOKENS, self.scale, 16)):
            headers = {**_OCTETS, "authorization": f"Bearer smt_made_up_{number}", "content-length": "9"}
            await (await self.connection()).send(request_bytes("POST", "/Attacked/echo", headers=headers))


async def looked_at(address: str, for_s: float) -> Times:
    """What becomes of a bystander's requests. Raises AssertionError where one fails."""
    loop = asyncio.get_running_loop()
    times: list[float] = []
    async with http_connection(address, local_addr=(BYSTANDER, 0)) as connection:
        until = loop.time() + for_s
        while loop.time() < until or not times:
            began = loop.time()
            answer = await connection.request("POST", "/Attacked/echo", b"x", headers=_OCTETS)
            assert (answer.status, answer.body) == (200, b"x"), f"the bystander was refused: {answer}"
            times.append(loop.time() - began)
            await asyncio.sleep(PAUSE_S)
    return Times.of(times)


async def run(target: Target, scale: float) -> str:
    for_s = LOOKED_AT_S * min(1.0, scale)
    async with ingress_of(target) as address:
        await looked_at(address, 0.0)
        told = [f"p99 quiet {(await looked_at(address, for_s)).p99_ms:.1f} ms"]
        floods: dict[str, Callable[[Flood], Awaitable[None]]] = {
            "unfinished bodies": Flood.bodies,
            "large calls": Flood.large_calls,
            "connections": Flood.connections,
            "made-up tokens": Flood.tokens,
        }
        for name, begin in floods.items():
            async with Flood(address, scale) as flood:
                await begin(flood)
                seen = await looked_at(address, for_s)
                told.append(f"{name} {seen.p99_ms:.1f} ms (worst {seen.worst_ms:.0f} of {seen.calls})")
    return ", ".join(told)


ATTACK = Attack("http_floods", run)
