"""The listening socket of HTTP, its connections and their end, and the certificate of HTTPS.

Invariants: bound at `start`, before anything is announced; each second all connections are asked whether their clients
keep their times, and the certificate whether it has changed; a stop closes idle connections immediately, others when
they have answered, and all after the grace.
Owner: the app.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Collection
from contextlib import suppress
from email.utils import formatdate
from pathlib import Path
from typing import Final

from ingress_service.core.peers import ConnectionBound
from ingress_service.shell.http.connection import HttpProtocol
from ingress_service.shell.http.https_handshakes import HttpsHandshakes
from ingress_service.shell.http.served_connections import ServedConnection, ServedConnections
from slotmesh.logs import get_logger
from slotmesh.runtime.exits import CannotStart
from slotmesh.security.secret_files import FileStamp, stamp
from slotmesh.telemetry.security_metrics import FailedHandshakes
from slotmesh.units import join_host_port

_log = get_logger(__name__)


class HttpsCertificate:
    """The certificate that HTTPS shows, read again when its files change.

    Files that cannot be used never replace what is in use: certificate and key are read into a context of their own,
    which connections get only once both are in it. They are tried again with each look, since a problem such as a mode
    may be mended without changing them; each problem is logged once. `look` may be called by any one thread at a time.
    """

    def __init__(self, cert: Path, key: Path) -> None:
        """Reads the files.

        Raises:
            OSError: they cannot be used; ssl.SSLError is one.
        """
        self._files = (cert, key)
        self._stamps: tuple[FileStamp, ...] = (stamp(cert), stamp(key))
        """Of those that are used."""
        self._newest = self._read()
        self._problem = ""
        self.ends_at = _end_of(cert)
        """Seconds since 1970; None if it is none that this understands, and TLS does."""
        self.context = _context()
        """For the listening socket: each connection that comes gets the newest certificate."""
        self.context.sni_callback = self._use_newest

    def look(self) -> None:
        """Reads the files where they are others than those that were used last. Waits for the disk."""
        try:
            stamps = tuple(stamp(path) for path in self._files)
            if stamps == self._stamps:
                self._problem = ""
                return
            self._newest = self._read()
        except OSError as error:
            if (problem := problem_of(*self._files, error)) != self._problem:
                self._problem = problem
                _log.warning("the certificate of HTTPS cannot be read; the one before stays", reason=problem)
            return
        # Stamps of before the reading: what has changed meanwhile is read again.
        self._stamps, self._problem = stamps, ""
        self.ends_at = _end_of(self._files[0])

    def _read(self) -> ssl.SSLContext:
        context = _context()
        context.load_cert_chain(*self._files)
        return context

    def _use_newest(self, connection: ssl.SSLSocket | ssl.SSLObject, _name: str | None, _: ssl.SSLContext) -> None:
        """Called in each handshake, whether the client names a server or not."""
        connection.context = self._newest


def problem_of(cert: Path, key: Path, error: OSError) -> str:
    """What is wrong with the files, with the flags that name them."""
    return f"--https-cert {cert}, --https-key {key}: {error}"


def _context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    return context


def _end_of(certificate: Path) -> float | None:
    """When the first one in the file expires; None if it is one that this does not understand, and TLS does."""
    from slotmesh.security.tls import BadTls  # noqa: PLC0415 - most of a second, for those who have certificates
    from slotmesh.security.tls.certificates import read_certificates  # noqa: PLC0415 - see above

    try:
        return read_certificates(certificate.read_bytes())[0].not_after
    except (BadTls, OSError):
        return None


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
