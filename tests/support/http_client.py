"""A client of HTTP/1.1 that writes what a test says, byte by byte where that matters, and reads answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from slotmesh.units import parse_host_port

WAIT_S = 20.0


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """One answer."""

    status: int
    headers: Mapping[str, str]
    """Names in lower case."""
    body: bytes
    is_whole: bool = True
    """False: the connection ended before the end of the body."""

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class HttpConnection:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def request(
        self, method: str, path: str, body: bytes = b"", *, headers: Mapping[str, str] | None = None
    ) -> HttpAnswer:
        await self.send(request_bytes(method, path, body, headers))
        return await self.answer(is_head=method == "HEAD")

    async def answer(self, *, is_head: bool = False) -> HttpAnswer:
        """The next answer. Raises EOFError where there is none."""
        async with asyncio.timeout(WAIT_S):
            status, headers = await self.head()
            if is_head or status == 204:
                return HttpAnswer(status, headers, b"")
            if headers.get("transfer-encoding") == "chunked":
                parts: list[bytes] = []
                async for part in self.chunks():
                    if part is None:
                        return HttpAnswer(status, headers, b"".join(parts), is_whole=False)
                    parts.append(part)
                return HttpAnswer(status, headers, b"".join(parts))
            return HttpAnswer(status, headers, await self.reader.readexactly(int(headers.get("content-length", "0"))))

    async def head(self) -> tuple[int, dict[str, str]]:
        """Status and headers of the next answer."""
        lines = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        pairs = (line.split(": ", 1) for line in lines[1:] if line)
        return int(lines[0].split(" ")[1]), {name.lower(): value for name, value in pairs}

    async def chunks(self) -> AsyncIterator[bytes | None]:
        """The chunks of a body; None where the connection ends before the last one."""
        try:
            while size := int(await self.reader.readuntil(b"\r\n"), 16):
                yield (await self.reader.readexactly(size + 2))[:-2]
            await self.reader.readexactly(2)
        except asyncio.IncompleteReadError:
            yield None

    async def ended(self) -> bool:
        """Waits until the server has closed the connection."""
        async with asyncio.timeout(WAIT_S):
            try:
                return await self.reader.read(1) == b""
            except ConnectionError:
                return True


def request_bytes(method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None) -> bytes:
    """A request as it is written."""
    lines = {"host": "test", **(headers or {})}
    if body or method in {"POST", "PUT", "PATCH"}:
        lines.setdefault("content-length", str(len(body)))
        lines.setdefault("content-type", "application/json")
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode() + body


@asynccontextmanager
async def http_connection(address: str, **more: Any) -> AsyncIterator[HttpConnection]:
    """A connection for as long as the block lasts. `more`: of asyncio.open_connection."""
    reader, writer = await asyncio.open_connection(*parse_host_port(address), limit=2**20, **more)
    try:
        yield HttpConnection(reader, writer)
    finally:
        writer.close()


async def http(
    address: str, method: str, path: str, body: Any = b"", headers: Mapping[str, str] | None = None
) -> HttpAnswer:
    """One request on a connection of its own. What is no bytes is sent as JSON."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    async with http_connection(address) as connection:
        return await connection.request(method, path, data, headers=headers)
