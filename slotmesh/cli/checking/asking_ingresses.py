"""Queries ingresses over HTTP, as their clients do. The controller does not know ingresses, so the command names them.

Invariants: an ingress that does not respond in time is reported as a result, too. All requests to one ingress share
one deadline of `ANSWER_WITHIN_S`, from the name of the host to the last byte, and a limit on the bytes read. A
truncated response never passes for a whole one. An ingress's certificate must be trusted by HTTP clients of this
machine or issued by the mesh's authority, and must match the queried name. A token is sent over TLS only.
Owner: `gathering.py`.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from email.message import Message
from email.parser import BytesHeaderParser
from typing import Any, Final

from slotmesh.cli.checking.findings import AnnouncedAddress, IngressFacts, IngressUrl, ServerAnswer, Validity
from slotmesh.cli.credentials import credentials
from slotmesh.client.tls import Tls
from slotmesh.runtime.channels import TokenSource
from slotmesh.security.secret_files import authorities_in
from slotmesh.units import join_host_port, parse_host_port
from slotmesh.v1.info_service_pb2 import GetServerInfoResponse

ANSWER_WITHIN_S: Final = 3.0
_MAX_BYTES: Final = 16 * 1024 * 1024
_NO_INGRESS: Final = "what answers there is no ingress"


class NoHttp(Exception):
    """The server sends no HTTP, or more than is read."""


class HttpConnection:
    """Requests to one server, one after the other, each on this connection while the server keeps it."""

    def __init__(self, host: str, port: int, context: ssl.SSLContext | None) -> None:
        """`context`: of TLS; None for plain text."""
        self._host, self._port, self._context = host, port, context
        self._named = join_host_port(host, port)
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter | None = None

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[HttpConnection]:
        """Raises OSError, and UnicodeError where the host is none."""
        try:
            await self._connect()
            yield self
        finally:
            self._drop()

    def shown_certificate(self) -> dict[str, Any]:
        """The fields of the server's certificate; empty for plain text."""
        return {} if self._writer is None else self._writer.get_extra_info("peercert") or {}

    async def get(self, path: str, headers: dict[str, str], max_bytes: int) -> tuple[int, bytes]:
        """Status and body of a page. Raises OSError or NoHttp."""
        writer = self._writer or await self._connect()
        sent = "".join(f"{name}: {value}\r\n" for name, value in {"host": self._named, **headers}.items())
        writer.write(f"GET {path} HTTP/1.1\r\n{sent}\r\n".encode())
        try:
            await writer.drain()
            first, _, rest = (await self._reader.readuntil(b"\r\n\r\n")).partition(b"\r\n")
            version, status, *_ = first.split(maxsplit=2)
            if not version.startswith(b"HTTP/1."):
                raise NoHttp
            received = BytesHeaderParser().parsebytes(rest)
            body = await self._body(received, max_bytes)
        except (EOFError, ValueError, asyncio.LimitOverrunError):  # IncompleteReadError is an EOFError
            raise NoHttp from None
        if received.get("connection", "").lower() == "close" or version == b"HTTP/1.0":
            self._drop()
        return int(status), body

    async def _body(self, received: Message, max_bytes: int) -> bytes:
        read, body = self._reader, bytearray()
        if "chunked" in received.get("transfer-encoding", "").lower():
            while size := int((await read.readuntil(b"\r\n")).partition(b";")[0], 16):
                if len(body) + size > max_bytes:
                    raise NoHttp
                body += (await read.readexactly(size + 2))[:-2]
            while await read.readuntil(b"\r\n") != b"\r\n":
                pass  # trailers
            return bytes(body)
        length = received.get("content-length")
        if length is not None and int(length) <= max_bytes:
            return await read.readexactly(int(length))
        while length is None and len(body) <= max_bytes:
            if not (part := await read.read(max_bytes)):
                return bytes(body)
            body += part
        raise NoHttp

    async def _connect(self) -> asyncio.StreamWriter:
        name = self._host if self._context is not None else None
        self._reader, self._writer = await asyncio.open_connection(
            self._host, self._port, ssl=self._context, server_hostname=name
        )
        return self._writer

    def _drop(self) -> None:
        if self._writer is not None:
            self._writer.transport.abort()
        self._writer = None


async def ask_ingresses(urls: Sequence[IngressUrl]) -> tuple[ServerAnswer, ...]:
    """An answer for each, in this order."""
    return tuple(await asyncio.gather(*map(_ask, urls)))


async def _ask(url: IngressUrl) -> ServerAnswer:
    tls = credentials().tls
    by_tls = url.by_tls if url.by_tls is not None else tls is not None
    announced = AnnouncedAddress(subject=f"ingress {url.address}", kind="ingress", address=url.address)
    host, port = parse_host_port(url.address)
    try:
        connection = HttpConnection(host, port, _context(tls) if by_tls else None)
        async with asyncio.timeout(ANSWER_WITHIN_S), connection.opened():
            certificate = Validity.shown(connection.shown_certificate())
            ready, page = await connection.get("/-/readyz", {}, _MAX_BYTES)
            if ready not in (200, 503):
                return ServerAnswer(announced=announced, problem=_NO_INGRESS)
            why = page[:1_024].decode("utf-8", "replace").partition("\n")[0]
            status, page = await connection.get("/-/routes", _authorization() if by_tls else {}, _MAX_BYTES)
    except (OSError, NoHttp, UnicodeError) as error:  # SSLError and TimeoutError are OSErrors
        return ServerAnswer(announced=announced, problem=_words(error))
    document = _document(page)
    routes = document if status == 200 and isinstance(document, dict) else {}
    follows = routes.get("follows_controller")
    return ServerAnswer(
        announced=announced,
        info=GetServerInfoResponse(version=str(routes.get("version", ""))),
        certificate=certificate,
        ingress=IngressFacts(
            by_tls=by_tls,
            not_ready="" if ready == 200 else why,
            tells_routes=status == 200,
            follows_controller=follows if isinstance(follows, bool) else None,
            routes_held=routes.get("routes_held") is True,
        ),
    )


def _context(tls: Tls | None) -> ssl.SSLContext:
    context = ssl.create_default_context()
    if tls is not None and tls.ca is not None:
        context.load_verify_locations(cadata=authorities_in(tls.ca))
    return context


def _document(page: bytes) -> Any:
    """None if it is none."""
    try:
        return json.loads(page)
    except (ValueError, RecursionError):
        return None


def _authorization() -> dict[str, str]:
    token = credentials().token
    return {} if token is None else {"authorization": TokenSource(token).authorization()}


def _words(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return "it does not speak TLS, or not with this command"
    if isinstance(error, TimeoutError):
        return f"no answer within {ANSWER_WITHIN_S:g} s"
    if isinstance(error, UnicodeError):
        return "that is no name of a host"
    if isinstance(error, NoHttp):
        return _NO_INGRESS
    if isinstance(error, OSError) and not isinstance(error, socket.gaierror):
        # asyncio has words of its own, and one error for all addresses of a host.
        numbers = [error.errno] if error.errno else re.findall(r"\[Errno (\d+)\]", str(error))
        return os.strerror(int(numbers[-1])) if numbers else str(error)
    return getattr(error, "strerror", None) or str(error)
