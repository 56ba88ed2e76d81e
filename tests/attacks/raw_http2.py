"""HTTP/2 in bad conduct: frames as no library sends them, over a socket of one's own.

Invariants: nothing is kept to but the order of headers in one block. What the server sends is counted by the type of
its frames, and not answered; that it has closed the connection is noticed.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Final

from hpack import Encoder
from hyperframe.frame import (
    ContinuationFrame,
    DataFrame,
    Frame,
    HeadersFrame,
    PingFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)

from tests.attacks.http2 import READ_BYTES, grpc_headers, socket_of
from tests.attacks.target import Target

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
STREAM_CALLS: Final = "slotmesh.v1.RouterService/StreamCalls"
CALL: Final = "slotmesh.v1.RouterService/Call"
_HEADER_BYTES: Final = 9
_CLOSED_S: Final = 0.5
"""How long a server may take to say why it has closed a connection."""
_GO_AWAY: Final = "GoAwayFrame"


def header_block(path: str, more: Sequence[tuple[str, str]] = ()) -> bytes:
    """Of an rpc. It changes no table of the receiver, so that one block serves any number of streams."""
    encoder = Encoder()
    encoder.header_table_size = 0
    encoder.encode([])  # the change of the size, which the settings have announced
    return encoder.encode(grpc_headers(path, more))


def opening() -> bytes:
    """The preface, and settings without a header table."""
    return PREFACE + SettingsFrame(0, {SettingsFrame.HEADER_TABLE_SIZE: 0}).serialize()


def headers(stream_id: int, block: bytes, *, ends_headers: bool = True, ends_stream: bool = False) -> bytes:
    flags = [*(["END_HEADERS"] if ends_headers else []), *(["END_STREAM"] if ends_stream else [])]
    return HeadersFrame(stream_id, block, flags=flags).serialize()


def continuation(stream_id: int, block: bytes, *, ends_headers: bool = False) -> bytes:
    return ContinuationFrame(stream_id, block, flags=["END_HEADERS"] if ends_headers else []).serialize()


def data(stream_id: int, body: bytes, *, ends_stream: bool = False) -> bytes:
    return DataFrame(stream_id, body, flags=["END_STREAM"] if ends_stream else []).serialize()


def reset(stream_id: int) -> bytes:
    return RstStreamFrame(stream_id, 8).serialize()


def settings(values: dict[int, int]) -> bytes:
    return SettingsFrame(0, values).serialize()


def ping(number: int) -> bytes:
    return PingFrame(0, number.to_bytes(8)).serialize()


def window_update(stream_id: int, increment: int) -> bytes:
    return WindowUpdateFrame(stream_id, increment).serialize()


class RawHttp2:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.came: Counter[str] = Counter()
        """Frames of the server, by their types."""
        self.told = ""
        """What its GOAWAY says."""
        self._reading = asyncio.create_task(self._read())

    @property
    def is_closed(self) -> bool:
        """By the server: it takes nothing more, or has said that it will not."""
        return self._reading.done() or self.came[_GO_AWAY] > 0

    async def send(self, frames: bytes) -> bool:
        """Returns whether the server still takes them."""
        if self.is_closed:
            return False
        with suppress(ConnectionError):
            self._writer.write(frames)
            await self._writer.drain()
            return True
        return False

    async def closed(self, within_s: float) -> bool:
        """Whether the server closes the connection in that time."""
        await asyncio.wait([self._reading], timeout=within_s)
        return self.is_closed

    def cut(self) -> None:
        self._reading.cancel()
        self._writer.transport.abort()

    async def _read(self) -> None:
        waiting = bytearray()
        with suppress(ConnectionError):
            while some := await self._reader.read(READ_BYTES):
                waiting += some
                while len(waiting) >= _HEADER_BYTES:
                    frame, length = Frame.parse_frame_header(memoryview(bytes(waiting[:_HEADER_BYTES])))
                    if len(waiting) < _HEADER_BYTES + length:
                        break
                    name = type(frame).__name__
                    self.came[name] += 1
                    if name == _GO_AWAY:
                        self.told = bytes(waiting[_HEADER_BYTES + 8 : _HEADER_BYTES + length]).decode(
                            "utf-8", "replace"
                        )
                    del waiting[: _HEADER_BYTES + length]


@asynccontextmanager
async def raw_http2(target: Target, first: bytes | None = None) -> AsyncIterator[RawHttp2]:
    """A connection to the router, which is cut at the end. `first` takes the place of the preface and settings."""
    connection = RawHttp2(*await socket_of(target))
    try:
        await connection.send(opening() if first is None else first)
        yield connection
    finally:
        connection.cut()
        await asyncio.sleep(0)
