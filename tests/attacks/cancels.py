"""A storm of cancellations: 4,000 unary calls a second, each cancelled right away; and calls of a stream taken back.

Each call of the stream has one outcome all the same: its result, or CANCELLED.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any, Final

import grpc

from slotmesh.convert.batches import ids_from_wire, ids_of_results
from slotmesh.v1 import call_pb2, router_service_pb2, router_service_pb2_grpc
from tests.attacks.attack import Attack, scaled
from tests.attacks.slots import ENDPOINT
from tests.attacks.target import Target

PER_SECOND: Final = 4_000
SECONDS: Final = 5.0
TICK_S: Final = 0.01
STREAM_CALLS: Final = 50_000
BATCH: Final = 500
WINDOW: Final = 1_000
"""Calls of the stream that are unanswered at a time: a client may have as many before it is granted more."""

Frame = router_service_pb2.StreamCallsRequest


async def unary_storm(stub: Any, seconds: float) -> int:
    """Returns how many calls were made and cancelled."""
    options = call_pb2.CallOptions(method="echo")
    request = router_service_pb2.CallRequest(endpoint=ENDPOINT, options=options, payload=b"x" * 100)
    loop = asyncio.get_running_loop()
    began, made = loop.time(), 0
    while (now := loop.time()) < began + seconds:
        calls = [stub.Call(request, timeout=30) for _ in range(int((now - began) * PER_SECOND) - made)]
        made += len(calls)
        await asyncio.sleep(TICK_S)  # some are sent by now, some are not
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
    return made


async def taken_back(stub: Any, count: int) -> Counter[str]:
    """Makes calls on a stream and takes each batch back; returns the outcomes."""
    outcomes: Counter[str] = Counter()
    stream = stub.StreamCalls()
    options = call_pb2.CallOptions(method="echo")
    opening = router_service_pb2.OpenStream(endpoint=ENDPOINT, default_options=options)
    await stream.write(Frame(open=opening))
    for first in range(1, count + 1, BATCH):
        batch = router_service_pb2.CallBatch(first_call_id=first, payloads=[b"x" * 100] * BATCH)
        await stream.write(Frame(calls=router_service_pb2.CallFrame(batches=[batch])))
        taken = call_pb2.IdRange(first=first, last=first + BATCH - 1)
        await stream.write(Frame(cancel=router_service_pb2.CancelCalls(calls=[taken])))
        while first + BATCH - 1 - outcomes.total() > WINDOW - BATCH:
            count_outcomes(await stream.read(), outcomes)
    await stream.done_writing()
    while (answer := await stream.read()) is not grpc.aio.EOF:
        count_outcomes(answer, outcomes)
    return outcomes


def count_outcomes(answer: Any, outcomes: Counter[str]) -> None:
    assert answer is not grpc.aio.EOF, "the stream has ended"
    assert not answer.HasField("rejected"), answer.rejected
    for batch in answer.results.batches:
        outcomes["OK"] += len(ids_of_results(batch))
    for errors in answer.results.errors:
        outcomes[errors.failure.reason] += len(ids_from_wire(errors.calls))


async def run(target: Target, scale: float) -> str:
    async with target.channel() as channel:
        stub: Any = router_service_pb2_grpc.RouterServiceStub(channel)
        seconds, count = max(0.5, SECONDS * scale), scaled(STREAM_CALLS, scale, BATCH) // BATCH * BATCH
        made = await unary_storm(stub, seconds)
        outcomes = await taken_back(stub, count)
    assert outcomes.total() == count, f"one outcome each for {count} calls: {outcomes}"
    assert outcomes.keys() <= {"OK", "CANCELLED"}, outcomes
    ended = ", ".join(f"{number:,} {outcome}" for outcome, number in outcomes.most_common())
    return f"{made:,} unary calls cancelled in {seconds:g} s ({made / seconds:,.0f}/s); {count:,} on a stream: {ended}"


ATTACK = Attack("cancels", run)
