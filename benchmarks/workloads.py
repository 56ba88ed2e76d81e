"""The loads. Each keeps its calls in flight for a while, takes every reply, and says how many there were.

All are closed loops: a new call is made when a reply is taken. Replies are taken in the order of the calls; a call's
latency is from making it to taking its reply.
"""

from __future__ import annotations

import asyncio
import time
from array import array
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

import slotmesh
from benchmarks.baseline import request
from benchmarks.statistics import Sample
from slotmesh.v1.router_service_pb2_grpc import RouterServiceStub

PAYLOAD = b"x" * 100
ENDPOINT = "Echo"
METHOD = "echo"
STREAM_IN_FLIGHT = 512
UNARY_IN_FLIGHT = 32
MAP_CALLS = 1024
MAPS_IN_FLIGHT = 2

Workload = Callable[[float], Awaitable[Sample]]
"""Runs for about that many seconds."""
Made = Callable[[bytes], asyncio.Future[bytes]]
"""A method whose calls are futures."""
_now = time.perf_counter


async def futures(methods: Sequence[Made], in_flight: int, seconds: float) -> Sample:
    """A future a call; the calls go round the methods, one after another."""
    latencies_s = array("d")
    pending: deque[tuple[float, Made, asyncio.Future[bytes]]] = deque()
    turn = [methods[i % len(methods)] for i in range(in_flight)]
    started = _now()
    until = started + seconds
    for method in turn:
        pending.append((_now(), method, method(PAYLOAD)))
    while pending:
        made, method, reply = pending.popleft()
        await reply
        taken = _now()
        latencies_s.append(taken - made)
        if taken < until:
            pending.append((taken, method, method(PAYLOAD)))
    return Sample(len(latencies_s), _now() - started, latencies_s)


async def maps(method: slotmesh.Method[bytes], seconds: float) -> Sample:
    """Lists in, lists out. A latency is that of a whole list."""
    payloads = [PAYLOAD] * MAP_CALLS
    latencies_s = array("d")
    started = _now()
    until = started + seconds

    async def again() -> None:
        while (made := _now()) < until:
            await method.map(payloads)
            latencies_s.append(_now() - made)

    await asyncio.gather(*(again() for _ in range(MAPS_IN_FLIGHT)))
    return Sample(len(latencies_s) * MAP_CALLS, _now() - started, latencies_s)


async def unary(stub: RouterServiceStub, in_flight: int, seconds: float, *, endpoint: str = ENDPOINT) -> Sample:
    """An rpc a call: the same client code for a bare server and for a router."""
    message = request(endpoint, METHOD, PAYLOAD)
    latencies_s = array("d")
    started = _now()
    until = started + seconds

    async def again() -> None:
        while (made := _now()) < until:
            await stub.Call(message)
            latencies_s.append(_now() - made)

    await asyncio.gather(*(again() for _ in range(in_flight)))
    return Sample(len(latencies_s), _now() - started, latencies_s)
