"""Connections that say nothing: none at all, the preface and no more, an open stream and no frame.

By TLS there are some that do not end their handshake, too.

What has not shaken hands is closed by the server. What has, and then does not answer its pings, is closed later;
what does answer them may stay for as long as the server allows. All of it is gone when it leaves.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from typing import Final

from slotmesh.units import parse_host_port
from tests.attacks.attack import Attack, scaled
from tests.attacks.http2 import READ_BYTES, http2
from tests.attacks.raw_http2 import STREAM_CALLS, RawHttp2, header_block, headers, opening, raw_http2
from tests.attacks.target import Target

CONNECTIONS: Final = 300
"""Of each kind."""
HOLD_S: Final = 15.0
"""How long they are silent: longer than any handshake (5 s) may take."""
WITHOUT_HANDSHAKE: Final = ("of nothing", "of a handshake")
CLIENT_HELLO: Final = bytes.fromhex("1603010200010001fc0303")
"""The first bytes of a handshake of TLS, of a message of 508 bytes that never comes."""
AT_ONCE: Final = 50
"""That connect at a time: the queue of a listening socket is no part of this attack."""


class Silent:
    """A socket that nothing but `first` is written to."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reading = asyncio.create_task(self._read(reader))
        self._writer = writer

    @property
    def is_closed(self) -> bool:
        """By the server."""
        return self._reading.done()

    def cut(self) -> None:
        self._reading.cancel()
        self._writer.transport.abort()

    @staticmethod
    async def _read(reader: asyncio.StreamReader) -> None:
        with suppress(ConnectionError):
            while await reader.read(READ_BYTES):
                pass


async def silent(target: Target, first: bytes) -> Silent:
    """Connects by TCP, whatever the server expects, and writes these bytes."""
    host, port = parse_host_port(target.router)
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(first)
    return Silent(reader, writer)


async def run(target: Target, scale: float) -> str:
    count, hold_s = scaled(CONNECTIONS, scale, 3), min(HOLD_S, max(0.5, HOLD_S * scale))
    busy = asyncio.Semaphore(AT_ONCE)
    loop = asyncio.get_running_loop()
    async with AsyncExitStack() as stack:

        async def without_handshake(first: bytes) -> Silent:
            async with busy:
                each = await silent(target, first)
            stack.callback(each.cut)
            return each

        nothing = await asyncio.gather(*(without_handshake(b"") for _ in range(count)))
        hello = await asyncio.gather(*(without_handshake(CLIENT_HELLO) for _ in range(count * target.by_tls)))
        preface = [await stack.enter_async_context(raw_http2(target, opening())) for _ in range(count)]
        mute = headers(1, header_block(STREAM_CALLS))
        streams = [await stack.enter_async_context(raw_http2(target, opening() + mute)) for _ in range(count)]
        polite = [await stack.enter_async_context(http2(target)) for _ in range(count)]
        for each in polite:
            each.open(STREAM_CALLS)
        end = loop.time() + hold_s
        kinds: dict[str, Sequence[Silent | RawHttp2]] = {
            "of nothing": nothing,
            "of a handshake": hello,
            "of a preface": preface,
            "of a stream": streams,
        }
        while loop.time() < end and not all(each.is_closed for kind in kinds.values() for each in kind):
            await asyncio.sleep(0.1)
        closed = {kind: sum(each.is_closed for each in found) for kind, found in kinds.items() if found}
        if hold_s >= HOLD_S:
            left = [kind for kind in WITHOUT_HANDSHAKE if closed.get(kind, count) < count]
            assert not left, f"of {count} each the server has closed {closed}"
        ended = sum((each.statuses() for each in polite), Counter[int]())
        lost = sum(each.is_lost for each in polite)
    by_server = ", ".join(f"{number} {kind}" for kind, number in closed.items())
    return (
        f"{count} connections of each kind: within {hold_s:g} s the server closed {by_server}; of {count} with an open "
        f"stream that answer pings it ended {ended.total()} streams and closed {lost} connections"
    )


ATTACK = Attack("silent", run)
