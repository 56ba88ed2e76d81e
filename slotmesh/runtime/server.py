"""The gRPC server of every service: options, guards, health, reflection, an honest port, an ordered stop.

Purpose: a service adds its servicers and nothing else.
Invariants: off loopback only when asked for; NOT_SERVING until `set_serving`; a port that is taken is an error, never
shared by accident; after `stop` nothing of the server is left.
Owner: the service's app, on one event loop.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import grpc

from slotmesh.config import SettingsError, allowed_host
from slotmesh.runtime import channelz, health, reflection
from slotmesh.runtime.channels import server_options
from slotmesh.runtime.exits import CannotStart
from slotmesh.runtime.guards import GuardedRegistration
from slotmesh.runtime.rpc_times import RpcTimes
from slotmesh.runtime.step_queue import StepQueue
from slotmesh.security.tls import TlsSource
from slotmesh.telemetry.log import get_logger
from slotmesh.units import join_host_port

ServicerT = TypeVar("ServicerT")

_log = get_logger(__name__)


class Server(Protocol):
    """What an app needs of its server. `GrpcServer` documents each."""

    @property
    def rpc_times(self) -> RpcTimes: ...

    @property
    def address(self) -> str: ...

    def add(self, register: Callable[[ServicerT, Any], None], servicer: ServicerT) -> None: ...

    async def start(self) -> None: ...

    @property
    def serving(self) -> bool: ...

    def set_serving(self, serving: bool = True) -> None: ...

    async def stop(self, grace_s: float = 0.0) -> None: ...


class GrpcServer:
    """A server to be: add servicers, `start`, `set_serving`, and in the end `stop`."""

    def __init__(
        self,
        name: str,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        insecure: bool = False,
        so_reuseport: bool = False,
        channelz: bool = False,
        tls: TlsSource | None = None,
    ) -> None:
        """`name` is what clients and logs call it; port 0 takes a free one; `insecure` allows hosts off loopback.

        `so_reuseport`: several processes share the port on purpose. `channelz`: it answers `grpc.channelz.v1`. With
        `tls` only who has a certificate of its authorities can connect.

        Raises:
            SettingsError: `host` is off loopback and `insecure` is not set.
        """
        check_host(host, insecure=insecure)
        self._name = name
        self._host = host
        self._port = port
        self._so_reuseport = so_reuseport
        self._channelz = channelz
        self._tls = tls
        self._servicers: list[tuple[Callable[[Any, Any], None], Any]] = []
        self._server: grpc.aio.Server | None = None
        self._health: health.ServerHealth | None = None
        self._bound_port = 0
        self.turns = StepQueue()
        """For what streams bring and one step cannot deal with."""
        self.rpc_times = RpcTimes()
        """Of rpcs that have ended."""

    def add(self, register: Callable[[ServicerT, Any], None], servicer: ServicerT) -> None:
        """Mounts a servicer: `add(router_service_pb2_grpc.add_RouterServiceServicer_to_server, servicer)`."""
        if self._server is not None:
            raise RuntimeError("servicers are added before the start")
        self._servicers.append((register, servicer))

    async def start(self) -> None:
        """Binds and serves. Health checks answer NOT_SERVING until `set_serving`.

        Raises:
            CannotStart: the port is taken, or the host is not one of this machine.
        """
        server = grpc.aio.server(options=server_options(so_reuseport=self._so_reuseport))
        registration = GuardedRegistration(server, self._name, self.turns, self.rpc_times)
        for register, servicer in self._servicers:
            register(servicer, registration)
        if self._channelz:
            channelz.register(registration)
        state = health.ServerHealth()
        state.register(registration)
        state.add(registration.services)
        reflection.register(registration.services, registration)
        try:
            self._bound_port = self._bind(server, join_host_port(self._host, self._port))
        except RuntimeError as error:
            address = join_host_port(self._host, self._port)
            raise CannotStart(
                f"{self._name} cannot listen on {address}: the port is in use, or the host is not one of this machine;"
                " choose another with --port (0: any free one) or --host"
            ) from error
        await server.start()
        self._server, self._health = server, state
        _log.info("listening", server=self._name, address=self.address)

    def _bind(self, server: grpc.aio.Server, address: str) -> int:
        if self._tls is None:
            return server.add_insecure_port(address)
        return server.add_secure_port(address, self._tls.server_credentials(asks_for_certificate=True))

    @property
    def port(self) -> int:
        """The port that was bound. Only after `start`."""
        if self._server is None:
            raise RuntimeError(f"{self._name} has not started")
        return self._bound_port

    @property
    def address(self) -> str:
        """`HOST:PORT` as bound. Only after `start`."""
        return join_host_port(self._host, self.port)

    @property
    def serving(self) -> bool:
        """What health checks are told."""
        return self._health is not None and self._health.serving

    def set_serving(self, serving: bool = True) -> None:
        """Sets the answer of health checks. Only after `start`."""
        if self._health is None:
            raise RuntimeError(f"{self._name} has not started")
        if serving != self._health.serving:
            self._health.set_serving(serving)
            _log.info("serving" if serving else "not serving", server=self._name)

    async def stop(self, grace_s: float = 0.0) -> None:
        """Stops in order: NOT_SERVING, no new rpcs, `grace_s` for those under way, then they are cancelled.

        May be called again, and before `start`.
        """
        server, self._server = self._server, None
        if server is None:
            return
        if self._health is not None:
            self._health.close()
        await server.stop(grace_s)
        _log.info("stopped", server=self._name)


def check_host(host: str, *, insecure: bool) -> None:
    """Refuses a host that other machines can reach, unless that was asked for.

    Raises:
        SettingsError: it is off loopback and `insecure` is not set.
    """
    try:
        allowed_host(host, insecure=insecure)
    except ValueError as error:
        raise SettingsError(f"--host: {error}") from None
