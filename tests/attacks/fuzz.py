"""A million fuzzed frames and requests at the router, over real streams.

They are made by the descriptors of the protos, and some bytes of them are changed. Whatever comes is refused with a
status, or answered; a stream that ends is opened anew.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from typing import Final

from google.protobuf.descriptor import MethodDescriptor

from slotmesh.v1 import router_service_pb2, slot_service_pb2
from tests.attacks.attack import Attack, scaled
from tests.attacks.http2 import CUT_OFF, Http2, grpc_message, http2
from tests.attacks.raw_http2 import STREAM_CALLS
from tests.attacks.slots import ENDPOINT
from tests.attacks.target import Target
from tests.fuzz.messages import Words, message_from
from tests.fuzz.source import Source

FRAMES: Final = 1_000_000
UNARY_SHARE: Final = 0.1
"""Of the streams, that are rpcs with one request."""
FRAMES_OF_A_STREAM: Final = 12
"""Most frames are refused, and end their stream: what comes after them is not read."""
AT_ONCE: Final = 16
POOL: Final = 20_000
"""Different frames that are made; each is changed a little before it is sent again."""
PATIENCE_S: Final = 2.0
"""What an rpc may wait for that cannot come, until the attacker leaves."""
_UNIMPLEMENTED_OR_BELOW: Final = frozenset(range(17))
_WORDS: Final[Words] = {
    "": (ENDPOINT, "", "a"),
    "endpoint": (ENDPOINT, "Elsewhere"),
    "method": ("", "echo", "nothing", "_private"),
    "content_type": ("application/msgpack", "application/json", "application/octet-stream", "application/x-protobuf"),
    "session_id": ("0" * 32, "1" * 32),
}
_SERVICES: Final = (router_service_pb2, slot_service_pb2)
_KEPT_BACK: Final = frozenset({"ReserveSlot", "StreamCalls"})
"""Slots that are reserved are load that is allowed, and streams have frames of their own."""


def rpcs() -> list[MethodDescriptor]:
    """Those with one request."""
    return [
        method
        for module in _SERVICES
        for service in module.DESCRIPTOR.services_by_name.values()
        for method in service.methods
        if method.name not in _KEPT_BACK
    ]


class Frames:
    """Makes frames of the stream, and requests."""

    def __init__(self, seed: int, size: int) -> None:
        self.dice = random.Random(seed)
        descriptor = router_service_pb2.StreamCallsRequest.DESCRIPTOR
        self._frames = [self._message(descriptor) for _ in range(size)]
        self._requests = {
            f"{method.containing_service.full_name}/{method.name}": [
                self._message(method.input_type) for _ in range(size // 20)
            ]
            for method in rpcs()
        }
        options = router_service_pb2.CallRequest(endpoint=ENDPOINT).options
        options.method = "echo"
        opening = router_service_pb2.OpenStream(endpoint=ENDPOINT, default_options=options)
        self._opening = router_service_pb2.StreamCallsRequest(open=opening).SerializeToString()

    def of_a_stream(self) -> list[bytes]:
        """An opening, most often a sound one, and what follows."""
        frames = [self.changed(self.dice.choice(self._frames)) for _ in range(FRAMES_OF_A_STREAM)]
        if self.dice.random() < 0.9:
            frames[0] = self._opening
        return frames

    def of_an_rpc(self) -> tuple[str, bytes]:
        path = self.dice.choice([*self._requests])
        return path, self.changed(self.dice.choice(self._requests[path]))

    def changed(self, frame: bytes) -> bytes:
        """In one time of four, with another byte in it."""
        if not frame or self.dice.random() < 0.75:
            return frame
        at = self.dice.randrange(len(frame))
        return frame[:at] + self.dice.randbytes(1) + frame[at + 1 :]

    def _message(self, descriptor: object) -> bytes:
        source = Source(self.dice.randbytes(self.dice.choice((16, 64, 256))))
        return message_from(descriptor, source, _WORDS).SerializeToString()  # type: ignore[arg-type]  # a Descriptor


async def sent(connection: Http2, path: str, frames: Sequence[bytes]) -> tuple[int, int]:
    """Returns how many frames were sent, and the status of the rpc; that of cancellation where it still waited."""
    stream, count = connection.open(path), 0
    for frame in frames:
        if not await connection.send(stream, grpc_message(frame)):
            break
        count += 1
    await connection.send(stream, b"", end=True)
    try:
        async with asyncio.timeout(PATIENCE_S):
            return count, (await connection.answered(stream)).status or 0
    except TimeoutError:
        connection.reset(stream)
        return count, 1
    finally:
        connection.forget(stream)


async def run(target: Target, scale: float) -> str:
    left = count = scaled(FRAMES, scale, 2_000)
    frames = Frames(seed=5, size=scaled(POOL, min(1.0, scale * 10), 500))
    statuses: Counter[int] = Counter()
    streams = 0

    async def worker() -> None:
        nonlocal left, streams
        while left > 0:
            async with http2(target) as connection:
                while left > 0 and not connection.is_lost:
                    if frames.dice.random() < UNARY_SHARE:
                        path, request = frames.of_an_rpc()
                        some = [request]
                    else:
                        path, some = STREAM_CALLS, frames.of_a_stream()
                    number, status = await sent(connection, path, some)
                    left, streams = left - number, streams + 1
                    statuses[status] += 1

    await asyncio.gather(*(worker() for _ in range(AT_ONCE)))
    assert statuses.keys() <= _UNIMPLEMENTED_OR_BELOW | {CUT_OFF}, statuses
    ends = ", ".join(f"{number:,} with status {status}" for status, number in statuses.most_common())
    return f"{count:,} frames on {streams:,} streams and rpcs, which ended: {ends}"


ATTACK = Attack("fuzz", run, back_s=60.0)
