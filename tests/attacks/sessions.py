"""100,000 sessions with one call each, abandoned: their connections are cut, and nobody acknowledges a result.

A connection carries many of them. What replicas keep for sessions goes at the end of its time, which is short here.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Final
from uuid import uuid4

from slotmesh.v1 import call_pb2, router_service_pb2
from tests.attacks.attack import Attack, scaled
from tests.attacks.http2 import CUT_OFF, Http2, grpc_message, http2
from tests.attacks.raw_http2 import STREAM_CALLS
from tests.attacks.slots import ENDPOINT
from tests.attacks.target import RESUME_TTL_S, Target

SESSIONS: Final = 100_000
ON_A_CONNECTION: Final = 500
AT_ONCE: Final = 50
"""Sessions of one connection that are opened at a time; all stay open until it is cut."""
CONNECTIONS: Final = 2
BACK_S: Final = 60.0
REFUSED: Final = "RESOURCE_EXHAUSTED"
_RESOURCE_EXHAUSTED: Final = 8
_PATIENCE_S: Final = 60.0

Frame = router_service_pb2.StreamCallsRequest
Response = router_service_pb2.StreamCallsResponse


async def abandoned(connection: Http2) -> str:
    """Opens a session and has its call answered; what it leaves is never closed. Returns how it went."""
    stream = connection.open(STREAM_CALLS)
    options = call_pb2.CallOptions(method="echo")
    opening = router_service_pb2.OpenStream(endpoint=ENDPOINT, session_id=uuid4().hex, epoch=1, default_options=options)
    batch = router_service_pb2.CallBatch(first_call_id=1, payloads=[b"x" * 100])
    calls = router_service_pb2.CallFrame(batches=[batch])
    frames = [Frame(open=opening), Frame(calls=calls)]
    await connection.send(stream, b"".join(grpc_message(each.SerializeToString()) for each in frames))
    seen = 0
    while True:
        answer = await connection.answered(stream, messages=seen + 1)
        for message in answer.messages()[seen:]:
            seen += 1
            told = Response.FromString(message)
            roster = told.opened.roster if told.HasField("opened") else told.roster
            if told.HasField("results"):
                assert [*told.results.batches[0].payloads] == [b"x" * 100], told
                connection.forget(stream)
                return "answered"
            if told.HasField("roster") or told.opened.HasField("roster"):
                await connection.send(stream, grpc_message(Frame(roster=roster).SerializeToString()))
        if answer.status is not None:
            assert answer.status in (_RESOURCE_EXHAUSTED, CUT_OFF), f"{answer.status}: {answer.text}"
            connection.forget(stream)
            return REFUSED if answer.status == _RESOURCE_EXHAUSTED else "cut off"


async def run(target: Target, scale: float) -> str:
    count = scaled(SESSIONS, scale, AT_ONCE)
    left = iter(range(0, count, ON_A_CONNECTION))
    ends: Counter[str] = Counter()

    async def one_connection_after_another() -> None:
        for first in left:
            number = min(ON_A_CONNECTION, count - first)
            async with http2(target) as connection, asyncio.timeout(_PATIENCE_S):
                for at in range(0, number, AT_ONCE):
                    some = range(min(AT_ONCE, number - at))
                    ends.update(await asyncio.gather(*(abandoned(connection) for _ in some)))

    await asyncio.gather(*(one_connection_after_another() for _ in range(CONNECTIONS)))
    assert ends.total() == count, ends
    assert ends["answered"], "some sessions were served"
    told = ", ".join(f"{number:,} {end}" for end, number in ends.most_common())
    return f"{count:,} sessions: {told}; what is kept for them is kept for {RESUME_TTL_S} s"


ATTACK = Attack("sessions", run, warm_up=0.15, back_s=BACK_S)
