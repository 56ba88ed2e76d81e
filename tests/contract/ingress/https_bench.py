"""An HTTPS server alone with a small application on either event loop, and clients whose TLS is cut at any byte."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

from ingress_service.core.counters import Counters
from ingress_service.core.http1.heads import ConnectionLimits
from ingress_service.core.peers import ConnectionBound, PeerAddresses
from ingress_service.shell.http.served_connections import ServedConnections
from ingress_service.shell.http.server import IngressServer
from ingress_service.shell.request_log import FailedRequests
from slotmesh.telemetry.security_metrics import HandshakeProblem
from slotmesh.units import parse_host_port
from tests.support.certificates import Authority

Loops = Callable[[], asyncio.AbstractEventLoop]
LONG_S: Final = 30.0
REQUEST: Final = b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n"


class HttpsBench:
    """An HTTPS server with an application that counts its requests, and clients of it."""

    def __init__(self, folder: Path, *, header_s: float, most: int) -> None:
        self.web = Authority(folder / "web")
        self.other = Authority(folder / "other")
        files = self.web.issue("client", "web", dns=["localhost"])
        assert files.cert is not None
        assert files.key is not None
        bound = ConnectionBound(100, PeerAddresses())
        limits = ConnectionLimits(
            header_bytes=10_000,
            header_s=header_s,
            body_s=LONG_S,
            send_s=LONG_S,
            keep_alive_s=LONG_S,
            ahead_requests=10,
            ahead_bytes=100_000,
        )
        self.requests = 0
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        shared = ServedConnections(
            *(self._answer, limits, bound, Counters(), FailedRequests()), max_message_bytes=10_000, scheme="https"
        )
        self.server = IngressServer(shared, (files.cert, files.key), ConnectionBound(most, PeerAddresses()))

    @property
    def failed(self) -> dict[HandshakeProblem, int]:
        return self.server.failed_handshakes.counts

    @property
    def under_way(self) -> int:
        handshakes: Any = self.server._handshakes
        return len(handshakes.under_way)

    @property
    def context(self) -> ssl.SSLContext:
        """That of the listening socket."""
        certificate: Any = self.server._certificate
        context: ssl.SSLContext = certificate.context
        return context

    def connect(self) -> socket.socket:
        plain = socket.create_connection(parse_host_port(self.server.address), timeout=LONG_S)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return plain

    def secured(self, trusted: Authority | None = None, shown: Authority | None = None) -> ssl.SSLSocket:
        context = ssl.create_default_context(cafile=str((trusted or self.web).ca))
        if shown is not None:
            files = shown.issue("client", "eve")
            assert files.cert is not None
            context.load_cert_chain(files.cert, files.key)
        return context.wrap_socket(self.connect(), server_hostname="localhost")

    async def serves(self) -> None:
        """A request is answered."""

        def once() -> None:
            with self.secured() as client:
                client.sendall(REQUEST)
                assert client.recv(1_000).startswith(b"HTTP/1.1 204 ")

        await asyncio.to_thread(once)

    async def _answer(self, _scope: Any, _receive: Any, send: Any) -> None:
        self.requests += 1
        await self.may_answer.wait()
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})


def run_https(
    make_loop: Loops,
    folder: Path,
    test: Callable[[HttpsBench], Awaitable[None]],
    *,
    header_s: float = LONG_S,
    most: int = 100,
) -> HttpsBench:
    """Runs the test with a server on a loop of that kind."""

    async def main() -> HttpsBench:
        bench = HttpsBench(folder, header_s=header_s, most=most)
        await bench.server.start("127.0.0.1", 0)
        try:
            async with asyncio.timeout(3 * LONG_S):
                await test(bench)
        finally:
            await bench.server.stop(0.0)
        return bench

    with asyncio.Runner(loop_factory=make_loop) as runner:
        return runner.run(main())


class TlsPieces:
    """TLS of a client by hand: what it sends can be cut or joined at any byte."""

    def __init__(self, trusted: Authority | None = None) -> None:
        context = ssl.create_default_context(cafile=None if trusted is None else str(trusted.ca))
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname="localhost")

    def hello(self) -> bytes:
        with contextlib.suppress(ssl.SSLWantReadError):
            self.tls.do_handshake()
        return self._outgoing.read()

    def finish(self, client: socket.socket) -> None:
        """Receives until the handshake ends for this side; what the server needs for it is not sent yet."""
        while True:
            self._read_some(client)
            with contextlib.suppress(ssl.SSLWantReadError):
                self.tls.do_handshake()
                return

    def take(self) -> bytes:
        """What is to be sent."""
        return self._outgoing.read()

    def receive(self, client: socket.socket) -> bytes:
        while True:
            with contextlib.suppress(ssl.SSLWantReadError):
                return self.tls.read(10_000)
            self._read_some(client)

    def _read_some(self, client: socket.socket) -> None:
        data = client.recv(10_000)
        assert data, "the server closed the connection"
        self._incoming.write(data)


def send_in_steps(client: socket.socket, data: bytes, step: int) -> None:
    for start in range(0, len(data), step):
        client.sendall(data[start : start + step])
