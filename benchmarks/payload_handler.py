"""The handler whose payloads have many sizes and forms, and the same methods behind a bare `grpc.aio` server.

`size` takes a payload and answers with its length, `echo` gives it back: of bytes, of an array, of dataclasses.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slotmesh.codec import MSGPACK, OCTET_STREAM, ArgumentsDecoder, encode


@dataclass(frozen=True, slots=True)
class PayloadReading:
    """Some 50 bytes in msgpack."""

    sensor: str
    number: int
    value: float
    tags: list[str]


class Payloads:
    """Does nothing with what it gets, so that what is measured is its way."""

    async def bytes_size(self, payload: bytes) -> bytes:
        return b"%d" % len(payload)

    async def bytes_echo(self, payload: bytes) -> bytes:
        return payload

    async def array_size(self, values: NDArray[np.float32]) -> int:
        return values.nbytes

    async def array_echo(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        return values

    async def dataclasses_size(self, readings: list[PayloadReading]) -> int:
        return len(readings)

    async def dataclasses_echo(self, readings: list[PayloadReading]) -> list[PayloadReading]:
        return readings


def value(kind: str, nbytes: int) -> Any:
    """An argument that takes about this number of bytes as a payload."""
    if kind == "bytes":
        return bytes(nbytes)
    if kind == "array":
        return np.zeros(nbytes // 4, np.float32)
    return [PayloadReading(f"sensor-{at % 100:03}", at, at / 7, ["a", "b"]) for at in range(max(1, nbytes // 50))]


def content_type(kind: str) -> str:
    """The content type of the calls."""
    return OCTET_STREAM if kind == "bytes" else MSGPACK


Answer = Callable[[str, bytes], Awaitable[bytes]]
"""Content type and payload of a request; the payload of the response."""


def _answer(method: Callable[..., Any]) -> Answer:
    decoder = ArgumentsDecoder.for_handler(method)

    async def answer(content: str, payload: bytes) -> bytes:
        args, kwargs = decoder.decode(content, payload)
        return encode(content, await method(*args, **kwargs))

    return answer


def answers() -> dict[str, Answer]:
    """The methods by name, for a bare server: it decodes and encodes as a replica does."""
    handler = Payloads()
    return {name: _answer(getattr(handler, name)) for name in vars(Payloads) if not name.startswith("_")}
