"""Rapid reset: 20,000 streams that are opened and reset at once, over a few connections; half with a whole call.

The server may say GOAWAY; then the attacker connects again.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Final

from slotmesh.v1 import call_pb2, router_service_pb2
from tests.attacks.attack import Attack, scaled
from tests.attacks.http2 import grpc_message
from tests.attacks.raw_http2 import CALL, STREAM_CALLS, data, header_block, headers, raw_http2, reset
from tests.attacks.slots import ENDPOINT
from tests.attacks.target import Target

STREAMS: Final = 20_000
CONNECTIONS: Final = 4
BURST: Final = 100
"""Streams of each kind in one write."""
MAX_CONNECTIONS: Final = 2_000
"""In all, where the server closes each after a few streams."""


async def run(target: Target, scale: float) -> str:
    left = iter(range(scaled(STREAMS, scale, 2 * BURST) // (2 * BURST)))
    request = router_service_pb2.CallRequest(
        endpoint=ENDPOINT, options=call_pb2.CallOptions(method="echo"), payload=b"x"
    )
    message = grpc_message(request.SerializeToString())
    call, stream = header_block(CALL), header_block(STREAM_CALLS)
    sent = 0
    connected = 0
    told: Counter[str] = Counter()

    def burst(first: int) -> bytes:
        frames = bytearray()
        for at in range(first, first + 4 * BURST, 4):
            frames += headers(at, call) + data(at, message, ends_stream=True) + reset(at)
            frames += headers(at + 2, stream) + reset(at + 2)
        return bytes(frames)

    async def connection() -> None:
        nonlocal sent, connected
        for _ in left:
            async with raw_http2(target) as each:
                connected += 1
                assert connected <= MAX_CONNECTIONS
                first, goes_on = 1, True
                while goes_on:
                    goes_on = await each.send(burst(first))
                    first += 4 * BURST
                    sent += 2 * BURST * goes_on
                    goes_on = goes_on and next(left, None) is not None
                await each.closed(within_s=0.05)
                told[each.told or ("closed" if each.is_closed else "left open")] += 1

    await asyncio.gather(*(connection() for _ in range(CONNECTIONS)))
    ends = ", ".join(f"{number} {what!r}" for what, number in told.most_common())
    return f"{sent:,} streams were opened and reset on {connected} connections: {ends}"


ATTACK = Attack("resets", run, warm_up=2.0)
