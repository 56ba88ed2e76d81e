"""Messages that are none, and floods of frames that mean nothing.

Too large, of false lengths, compressed without end, cut off, no protobuf. Each rpc is refused with a status, but for
those that end before their message does: the transport lets them wait, until their connection ends. Each flood is
taken, or its connection closed.
"""

from __future__ import annotations

import asyncio
import gzip
import zlib
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from slotmesh.v1 import router_service_pb2
from tests.attacks.attack import Attack, scaled
from tests.attacks.http2 import CUT_OFF, Headers, grpc_message, http2
from tests.attacks.raw_http2 import (
    CALL,
    STREAM_CALLS,
    data,
    header_block,
    headers,
    ping,
    raw_http2,
    settings,
    window_update,
)
from tests.attacks.target import Target

ROUNDS: Final = 100
"""Of each kind of bad message, over one connection after another."""
LARGE_ROUNDS: Final = 10
TOO_LARGE: Final = 33 * 2**20
BOMB_MIB: Final = 512
FLOOD_FRAMES: Final = 50_000
BURST: Final = 500
PATIENCE_S: Final = 30.0
NO_ANSWER: Final = -2
"""In place of a status: there was none while anybody waited."""
WAIT_S: Final = 0.1
"""How long an answer is waited for that need not come."""
TRUNCATED: Final = 500
_GZIP: Final = (("grpc-encoding", "gzip"),)
_INVALID, _EXHAUSTED, _UNIMPLEMENTED, _INTERNAL, _UNKNOWN = 3, 8, 12, 13, 2


@dataclass(frozen=True, slots=True)
class Bad:
    """A kind of message."""

    body: bytes
    statuses: frozenset[int]
    """What it may be answered with."""
    path: str = CALL
    more: Headers = ()
    is_large: bool = False
    ends: bool = True
    """The stream, after it."""


def kinds(*, bomb_mib: int = BOMB_MIB) -> Mapping[str, Bad]:
    nonsense = b"\xff" * 100
    sound = router_service_pb2.CallRequest(endpoint="Attacked").SerializeToString()
    false = frozenset({_INVALID, _EXHAUSTED, _INTERNAL, _UNKNOWN, CUT_OFF})
    unfinished = false | {NO_ANSWER}
    too_large = frozenset({_EXHAUSTED})
    return {
        "33 MiB announced": Bad(grpc_message(sound, length=TOO_LARGE), too_large, ends=False),
        "33 MiB": Bad(grpc_message(bytes(TOO_LARGE)), too_large, is_large=True),
        "4 GiB announced": Bad(grpc_message(sound, length=2**32 - 1), too_large, STREAM_CALLS, ends=False),
        "longer than it is": Bad(grpc_message(sound, length=1000), unfinished),
        "shorter than it is": Bad(grpc_message(sound, length=3), false),
        "half a prefix": Bad(b"\0\0\0", unfinished),
        "no message": Bad(b"", unfinished),
        "gzip bomb": Bad(grpc_message(bomb(bomb_mib), flag=1), too_large, more=_GZIP, is_large=True),
        "gzip bomb on a stream": Bad(grpc_message(bomb(bomb_mib), flag=1), too_large, STREAM_CALLS, _GZIP, True),
        "no gzip": Bad(grpc_message(nonsense, flag=1), false, more=_GZIP),
        "half a gzip": Bad(grpc_message(gzip.compress(bytes(9999))[:20], flag=1), false, more=_GZIP),
        "compressed by nobody knows what": Bad(grpc_message(nonsense, flag=1), false | {_UNIMPLEMENTED}),
        "unknown flag": Bad(grpc_message(sound, flag=0x7F), unfinished | {_UNIMPLEMENTED}),
        "no protobuf": Bad(grpc_message(nonsense), frozenset({_INVALID})),
        "no protobuf on a stream": Bad(grpc_message(nonsense), frozenset({_INVALID}), STREAM_CALLS),
    }


def bomb(mib: int) -> bytes:
    """Zeros, a thousandth of their size."""
    packed = zlib.compressobj(9, zlib.DEFLATED, 31)
    return b"".join(packed.compress(bytes(2**20)) for _ in range(mib)) + packed.flush()


async def answers_to(target: Target, bad: Bad, rounds: int) -> Counter[int]:
    """A connection for all rounds, and a new one where it was closed."""
    statuses: Counter[int] = Counter()
    while statuses.total() < rounds:
        async with http2(target) as connection:
            while statuses.total() < rounds and not connection.is_lost:
                stream = connection.open(bad.path, bad.more)
                await connection.send(stream, bad.body, end=bad.ends)
                try:
                    async with asyncio.timeout(WAIT_S if NO_ANSWER in bad.statuses else PATIENCE_S):
                        statuses[(await connection.answered(stream)).status or 0] += 1
                except TimeoutError:
                    statuses[NO_ANSWER] += 1
                connection.reset(stream)
    return statuses


async def flood(target: Target, frame: Callable[[int], bytes], count: int) -> str:
    """Frames that no answer is read of but by count; returns how it ended."""
    first = headers(1, header_block(STREAM_CALLS))
    async with raw_http2(target) as connection:
        await connection.send(first)
        for at in range(0, count, BURST):
            if not await connection.send(b"".join(map(frame, range(at, at + BURST)))):
                break
        await connection.closed(within_s=0.2)
        return f"{connection.told or 'closed'}" if connection.is_closed else "taken"


FLOODS: Final[Mapping[str, Callable[[int], bytes]]] = {
    "pings": ping,
    "settings": lambda number: settings({4: 65_535 + number % 2}),
    "window updates": lambda number: window_update(number % 2, 1),
    "empty data": lambda _: data(1, b""),
}


async def run(target: Target, scale: float) -> str:
    bad_ones = kinds(bomb_mib=scaled(BOMB_MIB, scale, 48))
    total = 0
    for what, bad in bad_ones.items():
        statuses = await answers_to(target, bad, scaled(LARGE_ROUNDS if bad.is_large else ROUNDS, scale))
        assert statuses.keys() <= bad.statuses, f"{what}: {statuses}, and not {sorted(bad.statuses)}"
        total += statuses.total()
    half = data(1, grpc_message(bytes(1000)))[:500]
    for _ in range(scaled(TRUNCATED, scale, 5)):
        async with raw_http2(target) as connection:
            await connection.send(headers(1, header_block(CALL)) + half)
    count = scaled(FLOOD_FRAMES, scale, BURST)
    ends = {what: await flood(target, frame, count) for what, frame in FLOODS.items()}
    told = ", ".join(f"{what}: {end}" for what, end in ends.items())
    return f"{total:,} messages of {len(bad_ones)} kinds refused; floods of {count:,} frames: {told}"


ATTACK = Attack("messages", run)
