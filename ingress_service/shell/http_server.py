"""The listening socket of HTTP, its connections, and their end.

Invariants: bound at `start`, before anything is announced; each second all connections are asked whether their clients
keep their times, and the certificate whether it has changed; a stop closes idle connections at once, others when they
have answered, and all after the grace.
Owner: the app.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from contextlib import suppress
from email.utils import formatdate
from pathlib import Path
from typing import Final

from ingress_service.core.connection_bound import ConnectionBound
from ingress_service.shell.http_protocol import HttpProtocol
from ingress_service.shell.https_certificate import HttpsCertificate, problem_of
from ingress_service.shell.https_handshakes import HttpsHandshakes
from ingress_service.shell.served_connections import ServedConnection, ServedConnections
from slotmesh.runtime.exits import CannotStart
from slotmesh.telemetry.failed_handshakes import FailedHandshakes
from slotmesh.units import join_host_port

LOOK_S: Final = 0.25
"""How often connections are looked at."""


class IngressServer:
    """Serves one ASGI app."""

    def __init__(
        self, shared: ServedConnections, certificate: tuple[Path, Path] | None, handshakes: ConnectionBound
    ) -> None:
        """`certificate`: files of certificate and key; None: plain text. `handshakes`: bounds those under way."""
        self._shared = shared
        self._files = certificate
        self._certificate: HttpsCertificate | None = None
        self._handshake_bound = handshakes
        self._handshakes: HttpsHandshakes | None = None
        self.failed_handshakes = FailedHandshakes("https")
        self._server: asyncio.Server | None = None
        self.address = ""
        """`HOST:PORT`, once it listens."""

    @property
    def connections(self) -> Collection[ServedConnection]:
        """All that are open, WebSockets included."""
        return self._shared.open

    @property
    def serves_https(self) -> bool:
        """Whether its connections begin with a TLS handshake."""
        return self._files is not None

    @property
    def certificate_ends_at(self) -> float | None:
        """Seconds since 1970; None without one, or where it is none that can be read."""
        return None if self._certificate is None else self._certificate.ends_at

    async def start(self, host: str, port: int) -> None:
        """Listens. Raises CannotStart."""
        if self._files is not None:
            try:
                self._certificate = HttpsCertificate(*self._files)
            except OSError as error:
                raise CannotStart(problem_of(*self._files, error)) from error
            self._handshakes = HttpsHandshakes(
                self._connect,
                self._certificate.context,
                self.failed_handshakes,
                self._handshake_bound,
                handshake_s=self._shared.limits.header_s,
            )
        accept = self._connect if self._handshakes is None else self._handshakes.accept
        try:
            self._server = await asyncio.get_running_loop().create_server(accept, host, port, backlog=2048)
        except OSError as error:
            raise CannotStart(f"cannot listen on {join_host_port(host, port)}: {error.strerror or error}") from error
        bound = self._server.sockets[0].getsockname()
        self.address = join_host_port(bound[0], bound[1])

    async def watch(self) -> None:
        """Looks at connections and certificate until cancelled."""
        loop, turns = asyncio.get_running_loop(), 0
        looking: asyncio.Future[None] = loop.create_future()
        looking.set_result(None)
        while True:
            if turns % 4 == 0:
                self._shared.date_line = b"date: %b\r\n" % formatdate(usegmt=True).encode()
                if self._certificate is not None and looking.done():
                    looking = loop.run_in_executor(None, self._certificate.look)
            now = loop.time()
            for connection in [*self.connections]:
                connection.overdue(now)
            turns += 1
            await asyncio.sleep(LOOK_S)

    async def stop(self, grace_s: float) -> None:
        """Takes no more connections; those that there are may answer what they have been asked."""
        if self._server is None:
            return
        self._server.close()
        if self._handshakes is not None:
            self._handshakes.stop()
        shared = self._shared
        for connection in [*shared.open]:
            connection.stop()
        with suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                while shared.open or shared.tasks:  # noqa: ASYNC110 - they are plain sets
                    await asyncio.sleep(0.01)
        tasks = [*shared.tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for connection in [*shared.open]:
            connection.transport.abort()

    def _connect(self) -> HttpProtocol:
        return HttpProtocol(self._shared)
