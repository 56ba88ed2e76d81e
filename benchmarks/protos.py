"""Rpcs of users' own protos: unary ones beside `RouterService.Call`, streams both ways beside a bare server.

The loads take turns, so that a drift of the machine cancels out; what counts is the ratio within a round. By processor
time it is told, too: that of all processes together, for as many calls, which other work on the machine changes little.
A stream has 64 requests on the way; one of them at a time says what the way through the mesh takes.
"""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from statistics import median
from typing import Any, Final

import grpc

from benchmarks import findings, workloads
from benchmarks.baseline import bare_server
from benchmarks.findings import Finding
from benchmarks.marked import MARK, cpu_s, members
from benchmarks.progress import show
from benchmarks.proto_handler import SERVICE
from benchmarks.statistics import Sample
from benchmarks.workloads import PAYLOAD, UNARY_IN_FLIGHT
from examples.local_mesh import local_mesh
from examples.own_proto import greeter_pb2
from slotmesh.cli.operator import Operator
from slotmesh.spec.descriptor_sets import services_of_files
from slotmesh.spec.model import Endpoint, Mesh
from slotmesh.v1.router_service_pb2_grpc import RouterServiceStub

HANDLER: Final = "benchmarks.proto_handler:ProtoEcho"
ENDPOINT: Final = "ProtoEcho"
LEAST: Final = {"unary": 0.6, "bidi": 0.5}
"""Own rpcs beside `RouterService.Call`, and streams through the mesh beside those of a bare server.

`Call` is registered at the server, and taken in past the loop of `grpc.aio` (`slotmesh.grpc_internals.accepting`); rpcs
that
come and go cannot be."""
STREAM_AHEAD: Final = 64
_WARM_UP_S: Final = 0.5
_MESH: Final = "protos"
_REQUEST: Final = greeter_pb2.GreetRequest(name=PAYLOAD.decode())

Load = Callable[[float], Awaitable[Sample]]
"""Runs for about that many seconds."""


async def measure(*, rounds: int, seconds: float) -> list[Finding]:
    """`seconds` for each load, of which a round has six.

    Raises:
        CannotStart: a server did not get ready.
    """
    async with AsyncExitStack() as stack:
        loads = await _loads(stack)
        rates: dict[str, list[float]] = {name: [] for name in loads}
        per_s: dict[str, list[float]] = {name: [] for name in loads}
        processes = members(_MESH)
        for run in loads.values():
            await run(_WARM_UP_S)
        for number in range(rounds):
            show(f"protos: round {number + 1} of {rounds}")
            for name, run in loads.items():
                before = cpu_s(processes)
                sample = await run(seconds)
                rates[name].append(sample.calls_per_s)
                per_s[name].append(sample.calls / (cpu_s(processes) - before))
    show("")

    def beside(name: str, other: str, of: dict[str, list[float]] = rates) -> float:
        return median(one / two for one, two in zip(of[name], of[other], strict=True))

    bound = {"unary": ("own", "call"), "bidi": ("bidi", "bare_bidi")}
    titles = {
        "unary": "own unary rpcs beside RouterService.Call",
        "bidi": "a stream both ways beside one of a bare server",
    }
    told = [
        *(
            findings.figure(
                f"protos_{name}_cpu", f"{titles[name]}, by processor time", beside(*bound[name], per_s), findings.ratio
            )
            for name in LEAST
        ),
        *(findings.figure(f"protos_{name}", _TITLES[name], median(rates[name]), findings.rate) for name in loads),
        findings.figure(
            "protos_bidi_alone_ratio",
            "one request at a time beside a bare server",
            beside("bidi_alone", "bare_alone"),
            findings.ratio,
        ),
    ]
    wanted = [
        findings.at_least(f"protos_{name}_ratio", titles[name], beside(*bound[name]), LEAST[name], findings.ratio)
        for name in LEAST
    ]
    return [*wanted, *told]


_TITLES: Final = {
    "own": "own unary rpcs",
    "call": "RouterService.Call",
    "bidi": "requests of a stream both ways, answered",
    "bare_bidi": "the same by a bare server",
    "bidi_alone": "one request at a time of a stream both ways",
    "bare_alone": "the same by a bare server, one at a time",
}


async def _loads(stack: AsyncExitStack) -> dict[str, Load]:
    mesh = await stack.enter_async_context(local_mesh(HANDLER, env={MARK: _MESH}))
    services = services_of_files([greeter_pb2.DESCRIPTOR])
    async with Operator.at(mesh.controller) as operator:
        await operator.apply(Mesh(endpoints=(Endpoint(name=ENDPOINT, grpc_services=services),)), prune=False)
    bare = await stack.enter_async_context(bare_server({MARK: _MESH}))
    router = await stack.enter_async_context(grpc.aio.insecure_channel(mesh.router))
    direct = await stack.enter_async_context(grpc.aio.insecure_channel(bare))
    await _until_known(router)
    return {
        "own": partial(_unary, router),
        "call": partial(workloads.unary, RouterServiceStub(router), UNARY_IN_FLIGHT, endpoint=ENDPOINT),
        "bidi": partial(_chat, router, STREAM_AHEAD),
        "bare_bidi": partial(_chat, direct, STREAM_AHEAD),
        "bidi_alone": partial(_chat, router, 1),
        "bare_alone": partial(_chat, direct, 1),
    }


async def _until_known(router: grpc.aio.Channel) -> None:
    """The router has the table that names the service."""
    greet = _greet(router)
    while True:
        try:
            await greet(_REQUEST)
        except grpc.aio.AioRpcError as error:
            if error.code().name != "UNIMPLEMENTED":
                raise
            await asyncio.sleep(0.01)
        else:
            return


def _greet(channel: grpc.aio.Channel) -> Any:
    serialise, parse = greeter_pb2.GreetRequest.SerializeToString, greeter_pb2.GreetResponse.FromString
    return channel.unary_unary(f"/{SERVICE}/Greet", serialise, parse)


async def _unary(channel: grpc.aio.Channel, seconds: float) -> Sample:
    greet = _greet(channel)
    latencies_s = array("d")
    started = time.perf_counter()
    until = started + seconds

    async def again() -> None:
        while (made := time.perf_counter()) < until:
            await greet(_REQUEST)
            latencies_s.append(time.perf_counter() - made)

    await asyncio.gather(*(again() for _ in range(UNARY_IN_FLIGHT)))
    return Sample(len(latencies_s), time.perf_counter() - started, latencies_s)


async def _chat(channel: grpc.aio.Channel, ahead: int, seconds: float) -> Sample:
    """One stream, of which so many requests are unanswered at most."""
    serialise, parse = greeter_pb2.GreetRequest.SerializeToString, greeter_pb2.GreetResponse.FromString
    call: Any = channel.stream_stream(f"/{SERVICE}/Chat", serialise, parse)()
    room = asyncio.Semaphore(ahead)
    started = time.perf_counter()
    until = started + seconds
    count = 0

    async def write() -> None:
        while time.perf_counter() < until:
            await room.acquire()
            await call.write(_REQUEST)
        await call.done_writing()

    writing = asyncio.ensure_future(write())
    while await call.read() is not grpc.aio.EOF:
        count += 1
        room.release()
    await writing
    return Sample(count, time.perf_counter() - started, array("d"))
