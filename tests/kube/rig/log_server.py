"""The part of a kubelet from which the API server reads logs: HTTPS, `/containerLogs/NAMESPACE/POD/CONTAINER`.

As the real one: tailLines, sinceTime in whole seconds, times with nine digits, no header before the first line, and
with `follow` until the container has ended. Not so: all containers of a pod have one log, and a line has the time at
which it was first read.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final
from urllib.parse import parse_qs, urlsplit

from slotmesh.security.tls import TlsFiles
from tests.kube.rig.local_pod import LocalPod

_LOOK_S: Final = 0.02
_KEPT_LINES: Final = 20_000


@dataclass
class StampedLog:
    """The lines of a file, with times that stay."""

    path: Path
    lines: list[tuple[datetime, str, bytes]] = field(default_factory=list)
    """The time, the same as text, the line with its end."""
    _read: int = 0

    def look(self, *, is_whole: bool) -> None:
        """`is_whole`: nothing more will be written."""
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            file.seek(self._read)
            for line in file:
                if not (line.endswith(b"\n") or is_whole):
                    break
                self._read += len(line)
                now = datetime.now(UTC)
                self.lines.append((now, f"{now:%Y-%m-%dT%H:%M:%S}.{now.microsecond:06}000Z", line))
        assert len(self.lines) < _KEPT_LINES


class LogServer:
    """Serves the logs of one node's pods."""

    def __init__(self, pod: Callable[[str], LocalPod]) -> None:
        """`pod`: that of a name. Raises KeyError."""
        self.port = 0
        self.is_reached = True
        self.requests: list[str] = []
        """Their targets, in order."""
        self._pod = pod
        self._logs: dict[str, StampedLog] = {}
        """By uid."""
        self._open: set[asyncio.StreamWriter] = set()

    def cut(self) -> None:
        """Breaks all connections; the next ones are served."""
        for writer in self._open:
            writer.transport.abort()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One request on each connection."""
        self._open.add(writer)
        try:
            with suppress(OSError, asyncio.IncompleteReadError):
                head = await reader.readuntil(b"\r\n\r\n")
                if self.is_reached:
                    await self._respond(head.split(b" ")[1].decode(), writer)
        finally:
            self._open.discard(writer)
            writer.transport.abort()

    async def _respond(self, target: str, writer: asyncio.StreamWriter) -> None:
        self.requests.append(target)
        url = urlsplit(target)
        asked = {name: values[-1] for name, values in parse_qs(url.query).items()}
        *_, pod_name, container_name = url.path.split("/")
        try:
            pod = self._pod(pod_name)
        except KeyError:
            return await _refuse(writer, f'pod "{pod_name}" not found')
        container = next(it for it in pod.containers if it.name == container_name)
        if waiting := container.state.get("waiting"):
            text = f'container "{container_name}" in pod "{pod_name}" is waiting to start: {waiting["reason"]}'
            return await _refuse(writer, text, "400 Bad Request")
        log = self._logs.setdefault(pod.uid, StampedLog(pod.place.log))
        log.look(is_whole="terminated" in container.state)
        at = max(0, len(log.lines) - int(asked.get("tailLines", len(log.lines))))
        if since := asked.get("sinceTime"):
            began = datetime.fromisoformat(since).replace(microsecond=0)
            at = max(at, next((i for i, it in enumerate(log.lines) if it[0] >= began), len(log.lines)))
        head = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n"
        while self.is_reached:
            has_ended = "terminated" in container.state
            log.look(is_whole=has_ended)
            for _, stamp, line in log.lines[at:]:
                data = f"{stamp} ".encode() + line
                writer.write(head + f"{len(data):x}\r\n".encode() + data + b"\r\n")
                head = b""
                await writer.drain()
            at = len(log.lines)
            if has_ended or asked.get("follow") != "true":
                writer.write(head + b"0\r\n\r\n")
                await writer.drain()
                return None
            await asyncio.sleep(_LOOK_S)
        return None


async def _refuse(writer: asyncio.StreamWriter, text: str, status: str = "404 Not Found") -> None:
    writer.write(f"HTTP/1.1 {status}\r\nContent-Length: {len(text)}\r\nConnection: close\r\n\r\n{text}".encode())
    await writer.drain()


@asynccontextmanager
async def serving_logs(pod: Callable[[str], LocalPod], tls: TlsFiles) -> AsyncIterator[LogServer]:
    """On loopback, at a free port."""
    logs = LogServer(pod)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    assert tls.cert is not None
    context.load_cert_chain(tls.cert, tls.key)
    server = await asyncio.start_server(logs.serve, "127.0.0.1", 0, ssl=context)
    logs.port = server.sockets[0].getsockname()[1]
    try:
        yield logs
    finally:
        server.close()
        logs.cut()
        await server.wait_closed()
