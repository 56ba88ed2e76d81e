"""Queries ingresses over HTTP, as their clients do. The controller does not know ingresses, so the command names them.

Invariants: an ingress that does not respond in time is reported as a result, too. All requests to one ingress share
one deadline of `ANSWER_WITHIN_S` and a limit on the bytes read: a socket's own timeout restarts with each byte, so a
slow server could hold a caller without end. At the deadline the socket is shut down, whichever thread waits for it, and
the request fails with TimeoutError: a truncated response never passes for a whole one. Only the name resolver has its
own bounds. An ingress's certificate must be trusted by HTTP clients of this machine or issued by the mesh's authority,
and must match the queried name. A token is sent over TLS only.
Owner: `gathering.py`.
"""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from http.client import HTTPConnection, HTTPException
from types import TracebackType
from typing import Any, Final

from slotmesh.cli.checking.seen import AnnouncedAddress, IngressFacts, IngressUrl, ServerAnswer, Validity
from slotmesh.cli.credentials import credentials
from slotmesh.client.tls import Tls
from slotmesh.runtime.channels import TokenSource
from slotmesh.security.secret_files import authorities_in
from slotmesh.units import parse_host_port


class HttpExchange:
    """HTTP requests to one server under one deadline; a context manager, not thread-safe.

    Uses one connection, or another one when the server closes it.
    """

    def __init__(self, host: str, port: int, context: ssl.SSLContext | None, within_s: float) -> None:
        """`context`: of TLS; None for plain text. The time begins now."""
        self._deadline = _Deadline(within_s)
        self._connection = _Connection(host, port, context, self._deadline)

    def __enter__(self) -> HttpExchange:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._deadline.cancel()
        self._connection.close()
        # A socket that is shut under a request looks like any other failure of its server.
        if isinstance(error, (OSError, HTTPException)) and self._deadline.is_over:
            raise TimeoutError from None

    def shown_certificate(self) -> dict[str, Any]:
        """The fields of the server's certificate; empty for plain text."""
        if self._connection.sock is None:
            self._connection.connect()
        connected = self._connection.sock
        return dict(connected.getpeercert() or {}) if isinstance(connected, ssl.SSLSocket) else {}

    def get(self, path: str, headers: dict[str, str], max_bytes: int) -> tuple[int, bytes]:
        """Status and body of a page.

        Raises OSError, TimeoutError among them, HTTPException where it is no HTTP or too long, and UnicodeError where
        the host is none.
        """
        self._connection.request("GET", path, headers=headers)
        response = self._connection.getresponse()
        body = response.read(max_bytes + 1)
        self._deadline.left_s()
        if len(body) > max_bytes:
            raise HTTPException("too long")
        return response.status, body


class _Deadline:
    """Shuts down the watched socket when the time is over."""

    def __init__(self, within_s: float) -> None:
        self._at = time.monotonic() + within_s
        self._socket: socket.socket | None = None
        self.is_over = False
        self._timer = threading.Timer(within_s, self._end)
        self._timer.daemon = True
        self._timer.start()

    def left_s(self) -> float:
        """Until it is over. Raises TimeoutError where it is."""
        left = self._at - time.monotonic()
        if self.is_over or left <= 0:
            self.is_over = True
            raise TimeoutError
        return left

    def watch(self, connected: socket.socket) -> None:
        """That one is shut, from now on. Raises TimeoutError where it is over."""
        self._socket = connected
        self.left_s()

    def cancel(self) -> None:
        """All is done."""
        self._timer.cancel()

    def _end(self) -> None:
        self.is_over = True
        if self._socket is not None:
            with suppress(OSError):  # it is closed
                # SSLSocket's own would take TLS from the socket under the thread that reads.
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)


class _Connection(HTTPConnection):
    """Connects within the remaining time, to the first address of the host that accepts."""

    def __init__(self, host: str, port: int, context: ssl.SSLContext | None, deadline: _Deadline) -> None:
        super().__init__(host, port)
        self._context = context
        self._deadline = deadline
        if context is not None:
            self.default_port = 443

    def connect(self) -> None:
        """Called by a request, too, where the server has closed the connection."""
        self.sock = connected = self._connected()
        self._deadline.watch(connected)
        if self._context is not None:
            self.sock = secured = self._context.wrap_socket(
                connected, server_hostname=self.host, do_handshake_on_connect=False
            )
            self._deadline.watch(secured)
            secured.do_handshake()

    def _connected(self) -> socket.socket:
        problem: OSError = OSError("that host has no address")
        for family, kind, protocol, _, address in socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM):
            made = socket.socket(family, kind, protocol)
            try:
                made.settimeout(self._deadline.left_s())
                made.connect(address)
            except OSError as error:
                made.close()
                problem = error
            else:
                return made
        raise problem


ANSWER_WITHIN_S: Final = 3.0
_MAX_BYTES: Final = 16 * 1024 * 1024
_NO_INGRESS: Final = "what answers there is no ingress"


async def ask_ingresses(urls: Sequence[IngressUrl]) -> tuple[ServerAnswer, ...]:
    """An answer for each, in this order."""
    return tuple(await asyncio.gather(*[asyncio.to_thread(_ask, each) for each in urls]))


def _ask(url: IngressUrl) -> ServerAnswer:
    tls = credentials().tls
    by_tls = url.by_tls if url.by_tls is not None else tls is not None
    announced = AnnouncedAddress(subject=f"ingress {url.address}", kind="ingress", address=url.address)
    host, port = parse_host_port(url.address)
    try:
        with HttpExchange(host, port, _context(tls) if by_tls else None, ANSWER_WITHIN_S) as exchange:
            certificate = _validity(exchange.shown_certificate())
            ready, page = exchange.get("/-/readyz", {}, _MAX_BYTES)
            if ready not in (200, 503):
                return ServerAnswer(announced=announced, problem=_NO_INGRESS)
            why = page[:1_024].decode("utf-8", "replace").partition("\n")[0]
            status, page = exchange.get("/-/routes", _authorization() if by_tls else {}, _MAX_BYTES)
    except (OSError, HTTPException, UnicodeError) as error:  # SSLError and TimeoutError are OSErrors
        return ServerAnswer(announced=announced, problem=_words(error))
    document = _document(page)
    routes = document if status == 200 and isinstance(document, dict) else {}
    follows = routes.get("follows_controller")
    return ServerAnswer(
        announced=announced,
        version=str(routes.get("version", "")),
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


def _validity(shown: dict[str, Any]) -> Validity | None:
    begin, end = shown.get("notBefore"), shown.get("notAfter")
    if not isinstance(begin, str) or not isinstance(end, str):
        return None
    return Validity(ssl.cert_time_to_seconds(begin), ssl.cert_time_to_seconds(end))


def _words(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return "it does not speak TLS, or not with this command"
    if isinstance(error, TimeoutError):
        return f"no answer within {ANSWER_WITHIN_S:g} s"
    if isinstance(error, UnicodeError):
        return "that is no name of a host"
    if isinstance(error, HTTPException):
        return _NO_INGRESS
    return getattr(error, "strerror", None) or str(error)
