"""The listening socket of HTTP, its connections, and their end.

Invariants: bound at `start`, before anything is announced; each second all connections are asked whether their clients
keep their times, and the certificate whether it has changed; a stop closes idle connections at once, others when they
have answered, and all after the grace.
Owner: the app.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from email.utils import formatdate
from pathlib import Path
from typing import Any, Final

from uvicorn.config import Config
from uvicorn.server import ServerState

from ingress_service.core.counters import Counters
from ingress_service.shell.http_protocol import ConnectionLimits, CountedSocket, GuardedProtocol
from ingress_service.shell.https_certificate import HttpsCertificate, problem_of
from slotmesh.runtime.exits import CannotStart
from slotmesh.units import join_host_port

LOOK_S: Final = 0.25
"""How often connections are looked at."""
WS_PING_S: Final = 20.0


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
            ws=CountedSocket,
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
        self._files = certificate
        self._certificate: HttpsCertificate | None = None
        self._server: asyncio.Server | None = None
        self.address = ""
        """`HOST:PORT`, once it listens."""

    @property
    def certificate_ends_at(self) -> float | None:
        """Seconds since 1970; None without one, or where it is none that can be read."""
        return None if self._certificate is None else self._certificate.ends_at

    async def start(self, host: str, port: int) -> None:
        """Listens. Raises CannotStart."""
        self._config.load()
        if self._files is not None:
            try:
                self._certificate = HttpsCertificate(*self._files)
            except OSError as error:
                raise CannotStart(problem_of(*self._files, error)) from error
        context = None if self._certificate is None else self._certificate.context
        try:
            self._server = await asyncio.get_running_loop().create_server(
                self._connect, host, port, ssl=context, backlog=2048
            )
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
                self._state.default_headers = [(b"date", formatdate(usegmt=True).encode())]
                if self._certificate is not None and looking.done():
                    looking = loop.run_in_executor(None, self._certificate.look)
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
