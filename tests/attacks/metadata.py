"""Metadata beyond what an rpc may have: 17 KB in order, lists that a small table blows up, blocks without an end.

The rpcs are refused, or their connection is closed, before anything of the mesh has seen them. But of a client that
does not acknowledge the server's settings the transport takes more: what is served so has to leave nothing.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Final

from slotmesh.v1 import call_pb2, router_service_pb2
from tests.attacks.attack import Attack, scaled
from tests.attacks.http2 import CUT_OFF, grpc_message, http2
from tests.attacks.raw_http2 import CALL, PREFACE, continuation, data, header_block, headers, raw_http2, settings
from tests.attacks.slots import ENDPOINT
from tests.attacks.target import Target

RPCS: Final = 300
METADATA_BYTES: Final = 17 * 1024
BOMBS: Final = 50
REFERENCES: Final = 50_000
"""To one entry of the header table, a byte each: the list that they stand for has `ENTRY_BYTES` times as much."""
FEW_REFERENCES: Final = 4_000
"""So many are within the 16 MiB of a client that has acknowledged nothing."""
ENTRY_BYTES: Final = 4_000
FLOODS: Final = 8
"""Connections with a block of headers that does not end."""
FLOOD_BYTES: Final = 16 * 2**20
"""Of each, where the server reads so much."""
FRAGMENT_BYTES: Final = 16_000
CLOSED_S: Final = 5.0
PATIENCE_S: Final = 20.0
_RESOURCE_EXHAUSTED: Final = 8


async def large(target: Target, count: int) -> Counter[int]:
    """Rpcs with more metadata than they may have; returns their statuses."""
    statuses: Counter[int] = Counter()
    async with http2(target) as connection:
        for _ in range(count):
            if connection.is_lost:
                break
            await connection.granted_settings.wait()
            stream = connection.open(CALL, [("x-large", "y" * METADATA_BYTES)])
            await connection.send(stream, a_call(), end=True)
            statuses[(await connection.answered(stream)).status or 0] += 1
    return statuses


def a_call() -> bytes:
    request = router_service_pb2.CallRequest(endpoint=ENDPOINT, options=call_pb2.CallOptions(method="echo"))
    return grpc_message(request.SerializeToString())


def blown_up(references: int) -> bytes:
    """Headers in which one entry of the table stands very often."""
    name, value = b"x-bomb", b"y" * ENTRY_BYTES
    entry = b"\x40" + bytes([len(name)]) + name + _length(len(value)) + value
    return header_block(CALL) + entry + b"\xbe" * references


def _length(number: int) -> bytes:
    """As HPACK writes a length of 127 or more."""
    number -= 127
    digits = bytearray([127])
    while number >= 128:
        digits.append(number % 128 | 128)
        number //= 128
    return bytes([*digits, number])


async def bomb(target: Target, references: int) -> bool:
    """A call with such metadata; returns whether it was answered, and not its connection closed."""
    block = blown_up(references)
    parts = [block[at : at + FRAGMENT_BYTES] for at in range(0, len(block), FRAGMENT_BYTES)]
    frames = headers(1, parts[0], ends_headers=False)
    frames += b"".join(continuation(1, part, ends_headers=part is parts[-1]) for part in parts[1:])
    frames += data(1, a_call(), ends_stream=True)
    async with raw_http2(target, PREFACE + settings({})) as connection:
        await connection.send(frames)
        async with asyncio.timeout(PATIENCE_S):
            while not connection.is_closed:
                if connection.came["HeadersFrame"] or connection.came["RstStreamFrame"]:
                    return True
                await asyncio.sleep(0.005)
    return False


async def endless(target: Target, most: int) -> tuple[int, bool]:
    """CONTINUATION after CONTINUATION; returns the bytes that the server took, and whether it has closed."""
    more = continuation(1, b"\x00\x01x" + bytes([126]) + b"y" * 126)
    burst = more * (FRAGMENT_BYTES // len(more))
    async with raw_http2(target) as connection:
        sent = 0
        goes_on = await connection.send(headers(1, header_block(CALL), ends_headers=False))
        while goes_on and sent < most:
            goes_on = await connection.send(burst)
            sent += len(burst)
        return sent, await connection.closed(CLOSED_S if sent < most else 0.1)


async def run(target: Target, scale: float) -> str:
    statuses = await large(target, scaled(RPCS, scale, 5))
    assert statuses.keys() <= {_RESOURCE_EXHAUSTED, CUT_OFF}, f"{METADATA_BYTES} bytes of metadata: {statuses}"
    bombs = scaled(BOMBS, scale, 2)
    beyond = sum([await bomb(target, REFERENCES) for _ in range(bombs)])
    within = sum([await bomb(target, FEW_REFERENCES) for _ in range(bombs)])
    floods = scaled(FLOODS, scale, 1)
    ends = await asyncio.gather(*(endless(target, scaled(FLOOD_BYTES, min(1.0, scale * 4))) for _ in range(floods)))
    refused = ", ".join(f"{number:,} with status {status}" for status, number in statuses.items())
    return (
        f"17 KB of metadata refused: {refused}; of {bombs} lists of {REFERENCES * ENTRY_BYTES // 2**20} MiB {beyond} "
        f"were answered, of as many of {FEW_REFERENCES * ENTRY_BYTES // 2**20} MiB {within}; the others were cut off; "
        f"{floods} blocks without an end: {sum(closed for _, closed in ends)} connections closed, after "
        f"{max(sent for sent, _ in ends) / 2**20:.1f} MiB at most"
    )


ATTACK = Attack("metadata", run)
