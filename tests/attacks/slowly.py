"""50 connections on which a valid call arrives one byte a second, each from another byte on.

Some dribble in the preface, some in the headers, some in the message. What the server does not close it may answer, and
then well.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Final

from slotmesh.v1 import call_pb2, router_service_pb2
from tests.attacks.attack import Attack, scaled
from tests.attacks.http2 import grpc_message
from tests.attacks.raw_http2 import CALL, data, header_block, headers, opening, raw_http2
from tests.attacks.slots import ENDPOINT
from tests.attacks.target import Target

CONNECTIONS: Final = 50
SECONDS: Final = 15.0
BYTE_S: Final = 1.0
ANSWER_S: Final = 10.0


def whole_request() -> bytes:
    """All that a client sends for one call."""
    call = router_service_pb2.CallRequest(endpoint=ENDPOINT, options=call_pb2.CallOptions(method="echo"), payload=b"x")
    message = data(1, grpc_message(call.SerializeToString()), ends_stream=True)
    return opening() + headers(1, header_block(CALL)) + message


async def run(target: Target, scale: float) -> str:
    request, count = whole_request(), scaled(CONNECTIONS, scale, 10)
    seconds = max(0.5, SECONDS * scale)
    pause_s = min(BYTE_S, seconds / 5)
    loop = asyncio.get_running_loop()
    async with AsyncExitStack() as stack:
        # The last ones get all of their bytes: these calls are answered.
        begun = [len(request) * at // count - (0 if at < count - 1 else 2) for at in range(1, count + 1)]
        connections = [(await stack.enter_async_context(raw_http2(target, request[:sent])), sent) for sent in begun]
        end, given = loop.time() + seconds, 0
        while loop.time() < end:
            await asyncio.sleep(pause_s)  # the pace of the attack
            for connection, sent in connections:
                if sent + given < len(request):
                    await connection.send(request[sent + given : sent + given + 1])
            given += 1
        closed = sum(connection.is_closed for connection, _ in connections)
        whole = [each for each, sent in connections if sent + given >= len(request) and not each.is_closed]
        async with asyncio.timeout(ANSWER_S):
            while not all(each.came["HeadersFrame"] for each in whole):
                await asyncio.sleep(0.01)
        early = sum(each.came["HeadersFrame"] > 0 for each, sent in connections if sent + given < len(request))
        assert whole, "some calls arrive in the end"
        assert not early, f"{early} calls were answered before they were whole"
    return (
        f"{count} connections at a byte each {pause_s:g} s for {seconds:g} s: the server closed {closed}, and answered "
        f"all {len(whole)} calls that had arrived"
    )


ATTACK = Attack("slowly", run)
