"""A handler that notices calls of a key out of order, and a program that calls it in each way until it is stopped.

`python -m tests.kube.journal` runs in a pod. Its last line is JSON: calls and failures of each way.
"""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

import grpc

import slotmesh
from slotmesh.v1 import call_pb2, router_service_pb2, router_service_pb2_grpc

ENDPOINT: Final = "journal"
KEYS: Final = 16
PAUSE_S: Final = 0.02
LATE_S: Final = 1.0
"""How long a node goes on connecting to a pod after its endpoint was removed."""


class Journal:
    """Takes numbers of keys, which have to increase."""

    def __init__(self) -> None:
        self._last: dict[str, int] = {}

    async def write(self, key: str, number: int) -> int:
        if number <= self._last.get(key, -1):
            raise ValueError(f"{key}: {number} after {self._last[key]}")
        self._last[key] = number
        return number

    async def read(self, number: int) -> int:
        return number


class Address:
    """A Service with an address of its own, as nodes see it: its pods, as they were up to `LATE_S` ago."""

    def __init__(self, name: str, port: int) -> None:
        self._name = name
        self._port = port
        self._looked_at = float("-inf")
        self._hosts: list[str] = []
        self._turn = 0

    async def next(self) -> tuple[str, int]:
        """The pod that takes the next connection."""
        if time.monotonic() - self._looked_at >= LATE_S:
            try:
                found = await asyncio.get_running_loop().getaddrinfo(self._name, self._port, type=socket.SOCK_STREAM)
                self._hosts = sorted({str(it[4][0]) for it in found})
            except socket.gaierror as error:
                # A node asks no DNS: only that there is no pod would count.
                if error.errno != socket.EAI_AGAIN or not self._hosts:
                    raise
            self._looked_at = time.monotonic()
        self._turn += 1
        return self._hosts[self._turn % len(self._hosts)], self._port


class Ways:
    """Calls by SDK, with and without a key, by gRPC and by HTTP; the latter two each on a connection of its own."""

    def __init__(self, mesh: slotmesh.Mesh) -> None:
        self._endpoint: Any = mesh.endpoint(ENDPOINT)
        self._lanes = [self._endpoint.ordered(f"key-{number}") for number in range(KEYS)]
        self._routers = Address("router", 7071)
        self._ingresses = Address("ingress", 8080)

    async def keyed(self, number: int) -> int:
        key = number % KEYS
        return int(await self._lanes[key].write(f"key-{key}", number))

    async def unkeyed(self, number: int) -> int:
        return int(await self._endpoint.read(number))

    async def grpc(self, number: int) -> int:
        host, port = await self._routers.next()
        own_connection = (("grpc.use_local_subchannel_pool", 1),)
        async with grpc.aio.insecure_channel(f"{host}:{port}", options=own_connection) as channel:
            stub: Any = router_service_pb2_grpc.RouterServiceStub(channel)
            options = call_pb2.CallOptions(method="read", content_type="application/json")
            request = router_service_pb2.CallRequest(endpoint=ENDPOINT, payload=b"[%d]" % number, options=options)
            return int((await stub.Call(request, timeout=10)).payload)

    async def http(self, number: int) -> int:
        reader, writer = await asyncio.open_connection(*await self._ingresses.next())
        try:
            body = b"[%d]" % number
            head = f"POST /{ENDPOINT}/read HTTP/1.0\r\nHost: mesh\r\nContent-Type: application/json\r\n"
            writer.write(head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body)
            async with asyncio.timeout(10):
                answer = await reader.read()
            return int(answer.rpartition(b"\r\n\r\n")[2])
        finally:
            writer.close()


async def repeat(call: Callable[[int], Awaitable[int]], stop: asyncio.Event) -> dict[str, Any]:
    """Calls until `stop`."""
    number, failures = 0, []
    while not stop.is_set():
        try:
            answer = await call(number)
            if answer != number:
                failures.append(f"{number}: {answer}")
        except Exception as error:  # noqa: BLE001 - reported
            failures.append(f"{number}: {type(error).__name__}: {error}"[:300])
        number += 1
        await asyncio.sleep(PAUSE_S)
    return {"calls": number, "failures": failures[:20], "failed": len(failures)}


async def main(routers: str) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with slotmesh.connect(routers) as mesh:
        ways = Ways(mesh)
        loops = {it.__name__: it for it in (ways.keyed, ways.unkeyed, ways.grpc, ways.http)}
        await asyncio.gather(ways.unkeyed(0), ways.grpc(0), ways.http(0))
        sys.stdout.write("calling\n")
        sys.stdout.flush()
        found = await asyncio.gather(*(repeat(it, stop) for it in loops.values()))
    sys.stdout.write(f"{json.dumps(dict(zip(loops, found, strict=True)))}\n")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
