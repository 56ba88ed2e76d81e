"""TCP between clients and one scripted router, which can fall silent as a host that vanishes does.

Owner: the scripted router.
"""

from __future__ import annotations

import asyncio
from asyncio import StreamReader, StreamWriter
from contextlib import suppress
from typing import Final

_READ_BYTES: Final = 256 * 1024


class Relay:
    """Listens at one address of this machine, and passes bytes on to a port."""

    def __init__(self) -> None:
        self.port = 0
        """Where it listens; kept when it is stopped and started again."""
        self._server: asyncio.Server | None = None
        self._target = 0
        self._has_vanished = False
        self._copies: set[asyncio.Task[None]] = set()
        self._writers: set[StreamWriter] = set()

    async def start(self, target: int) -> None:
        """Passes connections on to this port."""
        self._target, self._has_vanished = target, False
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    def vanish(self) -> None:
        """Passes nothing on from now on, and closes nothing: neither side notices."""
        self._has_vanished = True
        for copy in self._copies:
            copy.cancel()

    async def stop(self) -> None:
        """Resets all connections."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
        for copy in self._copies:
            copy.cancel()
        await asyncio.gather(*self._copies, return_exceptions=True)
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def _connected(self, reader: StreamReader, writer: StreamWriter) -> None:
        self._writers.add(writer)
        if self._has_vanished or self._server is None:
            return
        try:
            there_reader, there = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.transport.abort()
            return
        self._writers.add(there)
        for source, sink in ((reader, there), (there_reader, writer)):
            copy = asyncio.create_task(self._copy(source, sink))
            self._copies.add(copy)
            copy.add_done_callback(self._copies.discard)

    async def _copy(self, source: StreamReader, sink: StreamWriter) -> None:
        with suppress(OSError):
            while data := await source.read(_READ_BYTES):
                sink.write(data)
                await sink.drain()
        sink.close()
        self._writers.discard(sink)
