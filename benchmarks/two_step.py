"""Reserve, then dispatch: what the two steps cost beside one call.

Both take turns, one at a time, through the same router to the same replica, so that what the machine does meanwhile
meets both. Two steps are two rpcs; what is over twice a call is the slot.
"""

from __future__ import annotations

import time
from array import array
from contextlib import AsyncExitStack
from statistics import median
from typing import Final

from benchmarks import findings, workloads
from benchmarks.baseline import request
from benchmarks.findings import Finding
from benchmarks.loads import HANDLER
from benchmarks.progress import show
from benchmarks.statistics import Sample, percentile
from benchmarks.workloads import ENDPOINT, METHOD, PAYLOAD
from examples.local_mesh import local_mesh
from slotmesh.runtime.channels import open_channel
from slotmesh.v1 import slot_service_pb2
from slotmesh.v1.router_service_pb2_grpc import RouterServiceStub
from slotmesh.v1.slot_service_pb2_grpc import SlotServiceStub

MOST_TIMES: Final = 2.2
TURN_S: Final = 0.5
_WARM_UP_S: Final = 0.3


async def measure(*, rounds: int) -> list[Finding]:
    """A round is a turn of each."""
    async with AsyncExitStack() as stack:
        mesh = await stack.enter_async_context(local_mesh(HANDLER))
        channel = await stack.enter_async_context(open_channel(mesh.router))
        calls, slots = RouterServiceStub(channel), SlotServiceStub(channel)
        await workloads.unary(calls, 1, _WARM_UP_S)
        await two_steps(slots, _WARM_UP_S)
        call_s: list[float] = []
        two_s: list[float] = []
        for number in range(rounds):
            show(f"two-step: round {number + 1} of {rounds}")
            call_s.append(percentile(sorted((await workloads.unary(calls, 1, TURN_S)).latencies_s), 50))
            two_s.append(percentile(sorted((await two_steps(slots, TURN_S)).latencies_s), 50))
    show("")
    return found(call_s, two_s)


async def two_steps(slots: SlotServiceStub, seconds: float) -> Sample:
    """One reservation at a time, each followed by its dispatch."""
    reserve = slot_service_pb2.ReserveSlotRequest(endpoint=ENDPOINT)
    options = request(ENDPOINT, METHOD, PAYLOAD).options
    latencies_s = array("d")
    started = time.perf_counter()
    until = started + seconds
    while (made := time.perf_counter()) < until:
        token = (await slots.ReserveSlot(reserve)).slot.token
        await slots.Dispatch(slot_service_pb2.DispatchRequest(token=token, options=options, payload=PAYLOAD))
        latencies_s.append(time.perf_counter() - made)
    return Sample(len(latencies_s), time.perf_counter() - started, latencies_s)


def found(call_s: list[float], two_s: list[float]) -> list[Finding]:
    """Of the medians of each round."""
    times = median(two / call for call, two in zip(call_s, two_s, strict=True))
    write = findings.microseconds
    return [
        findings.figure("two_step_call", "unary call through the router, one at a time, p50", median(call_s), write),
        findings.figure("two_step_both", "reserve and dispatch, one at a time, p50", median(two_s), write),
        findings.at_most("two_step_ratio", "two steps / one call", times, MOST_TIMES, findings.ratio),
    ]
