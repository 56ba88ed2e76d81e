"""Who must not be harmed: a process that makes one unary call and one call on a stream at a time.

    python -m tests.attacks.bystander ROUTER [DIRECTORY]

By TLS with the directory of certificates. For each line of its input it writes a line of JSON: what became of the calls
since the last one, once there is one of each kind. It ends with its input.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from math import ceil
from typing import Any, Final

import grpc

import slotmesh
from slotmesh.client.tls import dialer_of
from slotmesh.codec import OCTET_STREAM
from slotmesh.security.identity import Role
from slotmesh.v1 import call_pb2, router_service_pb2, router_service_pb2_grpc
from tests.support.mesh import ROOT

NAME: Final = "client-bystander"
PAYLOAD: Final = b"x" * 100
PAUSE_S: Final = 0.01
"""Between two calls: the bystander is a client, not a load."""
PATIENCE_S: Final = 30.0
"""A call that takes longer has failed."""
ANSWER_S: Final = PATIENCE_S + 10


@dataclass(frozen=True, slots=True)
class Times:
    """Of calls of one kind. Milliseconds."""

    calls: int = 0
    p50_ms: float = 0.0
    p99_ms: float = 0.0
    worst_ms: float = 0.0

    @classmethod
    def of(cls, times_s: list[float]) -> Times:
        if not times_s:
            return cls()
        ordered = [each * 1e3 for each in sorted(times_s)]
        return cls(len(ordered), *(ordered[ceil(share * len(ordered)) - 1] for share in (0.5, 0.99, 1.0)))


@dataclass(frozen=True, slots=True)
class Seen:
    """What became of the bystander's calls in some time."""

    unary: Times
    stream: Times
    errors: list[str]


class Caller:
    """Makes calls of one kind, one after another, for as long as it is not cancelled."""

    def __init__(self, call: Callable[[], Awaitable[object]]) -> None:
        self._call = call
        self._times_s: list[float] = []
        self._errors: list[str] = []

    async def go_on(self) -> None:
        while True:
            began = time.perf_counter()
            try:
                await self._call()
            except (grpc.aio.AioRpcError, slotmesh.SlotmeshError) as error:
                self._errors.append(f"after {time.perf_counter() - began:.3f} s: {error}"[:500])
            else:
                self._times_s.append(time.perf_counter() - began)
            await asyncio.sleep(PAUSE_S)

    async def ended_one(self) -> None:
        """Waits until a call has ended since the last time, well or not."""
        while not (self._times_s or self._errors):
            await asyncio.sleep(PAUSE_S)

    def taken(self) -> tuple[Times, list[str]]:
        """What was seen since the last time."""
        times_s, self._times_s = self._times_s, []
        errors, self._errors = self._errors, []
        return Times.of(times_s), errors


async def call_until_told(router: str, directory: str | None) -> None:
    tls = slotmesh.Tls.from_dir(directory, NAME) if directory else None
    options = call_pb2.CallOptions(method="echo")
    request = router_service_pb2.CallRequest(endpoint="Attacked", options=options, payload=PAYLOAD)
    async with (
        dialer_of(tls, None).open(router, Role.ROUTER) as channel,
        slotmesh.connect(router, tls=tls) as mesh,
        asyncio.TaskGroup() as tasks,
    ):
        stub: Any = router_service_pb2_grpc.RouterServiceStub(channel)
        echo = mesh.endpoint("Attacked").options(content_type=OCTET_STREAM, timeout=PATIENCE_S).method("echo")
        unary, stream = Caller(lambda: stub.Call(request, timeout=PATIENCE_S)), Caller(lambda: echo(PAYLOAD))
        calling = [tasks.create_task(each.go_on()) for each in (unary, stream)]
        while await asyncio.to_thread(sys.stdin.readline):
            await asyncio.gather(unary.ended_one(), stream.ended_one())
            (of_unary, errors), (of_stream, more) = unary.taken(), stream.taken()
            sys.stdout.write(json.dumps(asdict(Seen(of_unary, of_stream, errors + more))) + "\n")
            sys.stdout.flush()
        for each in calling:
            each.cancel()


class Bystander:
    """The process, as who runs an attack has it."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def seen(self) -> Seen:
        """What became of the calls since the last time."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(b"\n")
        async with asyncio.timeout(ANSWER_S):
            told = json.loads(await self._process.stdout.readline())
        return Seen(Times(**told["unary"]), Times(**told["stream"]), told["errors"])


@asynccontextmanager
async def bystander_of(router: str, directory: str | None) -> AsyncIterator[Bystander]:
    """One that goes on calling for as long as the block lasts."""
    arguments = ["-m", "tests.attacks.bystander", router, *([directory] if directory else [])]
    process = await asyncio.create_subprocess_exec(sys.executable, *arguments, cwd=ROOT, stdin=PIPE, stdout=PIPE)
    try:
        yield Bystander(process)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        try:
            async with asyncio.timeout(ANSWER_S):
                await process.wait()
        except TimeoutError:
            process.kill()
            raise


if __name__ == "__main__":
    asyncio.run(call_until_told(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None))
