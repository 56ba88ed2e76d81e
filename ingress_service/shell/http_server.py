"""The listening socket of HTTP, its connections, and their end.

Invariants: bound at `start`, before anything is announced; each second all connections are asked whether their clients
keep their times, and the certificate whether it has changed; a stop closes idle connections at once, others when they
have answered, and all after the grace.
Owner: the app.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from contextlib import suppress
from email.utils import formatdate
from pathlib import Path
from typing import Any, Final

from uvicorn.config import Config
from uvicorn.server import ServerState

from ingress_service.core.counters import Counters
from ingress_service.shell.http_protocol import ConnectionLimits, GuardedProtocol
from slotmesh.runtime.exits import CannotStart
from slotmesh.telemetry.log import get_logger
from slotmesh.units import join_host_port

LOOK_S: Final = 0.25
"""How often connections are looked at."""
WS_PING_S: Final = 20.0

_log = get_logger(__name__)


class IngressServer:
    """Serves one ASGI app."""

    def __init__(
        self,
        app: Callable[..., Any],
        *,
        limits: ConnectionLimits,
        counters: Counters,
        keep_alive_s: float,
        max_message_bytes: int,
        certificate: tuple[Path, Path] | None,
    ) -> None:
        """`certificate`: files of certificate and key; None: plain text."""
        self._config = Config(
            app=app,
            http=GuardedProtocol,
            ws="websockets-sansio",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=False,
            proxy_headers=False,
            timeout_keep_alive=keep_alive_s,  # type: ignore[arg-type]  # seconds of call_later
            ws_max_size=max_message_bytes,
            ws_ping_interval=WS_PING_S,
            ws_ping_timeout=WS_PING_S,
        )
        self._limits = limits
        self._counters = counters
        self._state = ServerState()
        self.connections: set[Any] = set()
        self._certificate = certificate
        self._context: ssl.SSLContext | None = None
        self._read_at: tuple[float, ...] = ()
        self._server: asyncio.Server | None = None
        self.certificate_ends_at: float | None = None
        """Seconds since 1970; None without one, or where it is none that can be read."""
        self.address = ""
        """`HOST:PORT`, once it listens."""

    async def start(self, host: str, port: int) -> None:
        """Listens. Raises CannotStart."""
        self._config.load()
        if self._certificate is not None:
            self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self._context.minimum_version = ssl.TLSVersion.TLSv1_2
            self._context.set_alpn_protocols(["http/1.1"])
            if problem := self._read_certificate():
                raise CannotStart(problem)
        try:
            self._server = await asyncio.get_running_loop().create_server(
                self._connect, host, port, ssl=self._context, backlog=2048
            )
        except OSError as error:
            raise CannotStart(f"cannot listen on {join_host_port(host, port)}: {error.strerror or error}") from error
        bound = self._server.sockets[0].getsockname()
        self.address = join_host_port(bound[0], bound[1])

    async def watch(self) -> None:
        """Looks at connections and certificate until cancelled."""
        loop, turns = asyncio.get_running_loop(), 0
        while True:
            if turns % 4 == 0:
                self._state.default_headers = [(b"date", formatdate(usegmt=True).encode())]
                if self._context is not None and (problem := self._read_certificate()):
                    _log.warning("the certificate of HTTPS cannot be read; the one before stays", reason=problem)
            now = loop.time()
            for connection in [it for it in self.connections if isinstance(it, GuardedProtocol)]:
                connection.overdue(now)
            turns += 1
            await asyncio.sleep(LOOK_S)

    async def stop(self, grace_s: float) -> None:
        """Takes no more connections; those that there are may answer what they have been asked."""
        if self._server is None:
            return
        self._server.close()
        for connection in [*self._state.connections]:
            connection.shutdown()
        with suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                while self._state.connections or self._state.tasks:  # noqa: ASYNC110 - uvicorn keeps them in plain sets
                    await asyncio.sleep(0.01)
        for task in [*self._state.tasks]:
            task.cancel()
        await asyncio.gather(*self._state.tasks, return_exceptions=True)
        for connection in [*self._state.connections]:
            if (transport := getattr(connection, "transport", None)) is not None:
                transport.abort()

    def _connect(self) -> GuardedProtocol:
        return GuardedProtocol(self._config, self._state, self._limits, self._counters, self.connections)

    def _read_certificate(self) -> str:
        """Reads it where the files are others than before. Returns what is wrong; empty where nothing is."""
        if self._certificate is None or self._context is None:
            return ""
        try:
            changed = tuple(path.stat().st_mtime for path in self._certificate)
            if changed != self._read_at:
                self._read_at = changed
                self._context.load_cert_chain(*self._certificate)
                self.certificate_ends_at = _end_of(self._certificate[0])
        except (OSError, ssl.SSLError) as error:
            return f"--https-cert {self._certificate[0]}, --https-key {self._certificate[1]}: {error}"
        return ""


def _end_of(certificate: Path) -> float | None:
    """When the first one in the file expires; None where it is one that this does not understand, and TLS does."""
    from slotmesh.security.tls import BadTls  # noqa: PLC0415 - most of a second, for those who have certificates
    from slotmesh.security.tls.certificates import read_certificates  # noqa: PLC0415 - see above

    try:
        return read_certificates(certificate.read_bytes())[0].not_after
    except BadTls:
        return None
