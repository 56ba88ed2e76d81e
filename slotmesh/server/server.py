"""The gRPC server of every service: options, guards, health, reflection, ports, ordered stop.

Purpose: a service only adds its servicers.
Invariants: off loopback only with TLS, or if explicitly insecure; NOT_SERVING until `set_serving`; a taken port is an
error, never shared accidentally; after `stop` nothing of the server is left.
Owner: the service's app, on one event loop.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

import grpc

from slotmesh.calls.result_envelopes import MESH_SERVICES
from slotmesh.config import SettingsError
from slotmesh.config.listening import start_problem
from slotmesh.grpc_internals import channelz
from slotmesh.grpc_internals.aborts import released
from slotmesh.grpc_internals.accepting import accepting_server, serve_many
from slotmesh.logs import get_logger
from slotmesh.runtime.channels import server_options
from slotmesh.runtime.exits import CannotStart
from slotmesh.runtime.loop_slices import StepQueue
from slotmesh.security.authentication import Authorizer, TokenVerifier
from slotmesh.security.identity import Role
from slotmesh.security.rpc_roles import Rule
from slotmesh.server import health, reflection
from slotmesh.server.guards import GuardedRegistration, guard
from slotmesh.server.reflection import MoreServices
from slotmesh.server.rpc_gate import Edge, admitted
from slotmesh.streams.limits import DEFAULT_LIMITS, EdgeLimits
from slotmesh.telemetry.process_times import RpcTimes
from slotmesh.transport import local_sockets
from slotmesh.units import join_host_port

if TYPE_CHECKING:
    # Takes most of a second to import; only for processes with certificates.
    from slotmesh.security.tls import TlsSource

CALLERS: Final = (Role.INVOKER, Role.REPLICA)
"""Roles that may call them; endpoints are authorised separately."""
MAX_KNOWN: Final = 4096
_UNKNOWN: Final = "unknown"
"""The method label of unknown rpcs, whose names clients choose."""


class OwnRpcs(MoreServices, Protocol):
    """The source of users' own rpcs: the router's, which is not known here."""

    def kind_of(self, path: str) -> Any:
        """The kind of the rpc `package.Service/Method`; None if it is unknown."""

    def handler_of(self, path: str) -> Any:
        """The handler of the rpc, known or not."""


class OwnRpcHandlers(grpc.GenericRpcHandler):
    """The generic handler for rpcs of users' own protos, which appear and disappear while a server runs.

    They are guarded and admitted like all others, by one rule for all, as their protos declare no roles. It returns
    None for the mesh's services. Handlers of the most recently called rpcs are cached, and made again when their kind
    changes.
    """

    def __init__(self, own: OwnRpcs, name: str, turns: StepQueue, times: RpcTimes, edge: Edge) -> None:
        """`name`, `turns`, `times` and `edge` as for other rpcs of the server."""
        self._own = own
        self._guard: Callable[..., Any] = lambda handler, label: guard(
            handler, method=label, server=name, turns=turns, times=times
        )
        self._edge = edge
        self._known: dict[str, tuple[Any, Any]] = {}
        """By path: the kind of the rpc, and its handler."""

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        """The handler of one rpc."""
        path = details.method[1:]
        if path.startswith(MESH_SERVICES):
            return None
        kind = self._own.kind_of(path)
        if (known := self._known.get(path)) is not None and known[0] == kind:
            return known[1]
        guarded = self._guard(self._own.handler_of(path), path if kind is not None else _UNKNOWN)
        made = released(admitted(guarded, Rule(path, CALLERS), self._edge))
        if kind is not None:
            if len(self._known) >= MAX_KNOWN:
                self._known.clear()
            self._known[path] = (kind, made)
        return made


ServicerT = TypeVar("ServicerT")

_log = get_logger(__name__)


class Server(Protocol):
    """The interface of a server for apps, documented at `GrpcServer`."""

    @property
    def rpc_times(self) -> RpcTimes: ...

    @property
    def edge(self) -> Edge: ...

    @property
    def address(self) -> str: ...

    def add(self, register: Callable[[ServicerT, Any], None], servicer: ServicerT) -> None: ...

    async def start(self) -> None: ...

    @property
    def serving(self) -> bool: ...

    def set_serving(self, serving: bool = True) -> None: ...

    async def stop(self, grace_s: float = 0.0) -> None: ...


class GrpcServer:
    """A gRPC server: add servicers, `start`, `set_serving`, and finally `stop`."""

    def __init__(
        self,
        name: str,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        insecure: bool = False,
        channelz: bool = False,
        tls: TlsSource | None = None,
        token_port: int | None = None,
        tokens: TokenVerifier | None = None,
        authorizer: Authorizer | None = None,
        limits: EdgeLimits = DEFAULT_LIMITS,
    ) -> None:
        """`name`: in messages and logs. Port 0: any free port. `insecure` allows hosts off loopback without TLS.

        `channelz`: serves `grpc.channelz.v1`. With `tls` only clients with a certificate of its authorities can
        connect, except to `token_port`, which needs none. `tokens` identifies the holders of bearer tokens.
        `authorizer` admits rpcs; None: one that uses certificates and `tokens`. Without `tls` clients are not
        authenticated. `limits`: of connections, streams and messages.

        Raises:
            SettingsError: `host` is off loopback without `tls` or `insecure`; or there is `token_port` without `tls`.
        """
        if problem := start_problem(host, tls=tls is not None, tokens=token_port is not None, insecure=insecure):
            raise SettingsError(f"--host: {problem}" if token_port is None else f"--token-port: {problem}")
        if authorizer is None and tls is not None:
            authorizer = Authorizer(tls.trust_domain, tokens, trust=lambda: tls.current().trust)
        self._name = name
        self._host = host
        self._port = port
        self._channelz = channelz
        self._tls = tls
        self._token_port = token_port
        self._limits = limits
        self._incarnation = ""
        self._servicers: list[tuple[Callable[[Any, Any], None], Any]] = []
        self._own: OwnRpcs | None = None
        self._server: grpc.aio.Server | None = None
        self._health: health.ServerHealth | None = None
        self._bound_port = 0
        self._bound_token_port: int | None = None
        self.turns = StepQueue()
        """Schedules large frames and requests in slices."""
        self.rpc_times = RpcTimes()
        """Durations of ended rpcs."""
        self.edge = Edge(self.rpc_times, authorizer, limits)
        """Admits rpcs."""

    def listen_locally(self, incarnation: str) -> None:
        """Also listens on a local socket, if there are any (`slotmesh.transport.local_sockets`). Before the start.

        `incarnation`: random, known to clients that are to connect there.
        """
        self._incarnation = incarnation

    def add_own(self, own: OwnRpcs) -> None:
        """Serves rpcs of users' own protos, which no other servicer has."""
        self._own = own

    def add(self, register: Callable[[ServicerT, Any], None], servicer: ServicerT) -> None:
        """Adds a servicer: `add(router_service_pb2_grpc.add_RouterServiceServicer_to_server, servicer)`."""
        if self._server is not None:
            raise RuntimeError("servicers are added before the start")
        self._servicers.append((register, servicer))

    async def start(self) -> None:
        """Binds and serves. Health checks report NOT_SERVING until `set_serving`.

        Raises:
            CannotStart: the port is taken, or the host is not one of this machine.
        """
        listeners = 1 + (self._token_port is not None) + bool(self._incarnation and local_sockets.EXIST)
        server = accepting_server(server_options(self._limits, listeners))
        if self._own is not None:
            own = OwnRpcHandlers(self._own, self._name, self.turns, self.rpc_times, self.edge)
            server.add_generic_rpc_handlers((own,))
        registration = GuardedRegistration(server, self._name, self.turns, self.rpc_times, self.edge)
        for register, servicer in self._servicers:
            register(servicer, registration)
        if self._channelz:
            channelz.register(registration)
        state = health.ServerHealth()
        state.register(registration)
        state.add(registration.services)
        reflection.register(registration.services, registration, self._own)
        self._bind(server)
        serve_many(server, self._name, registration.of_many)
        await server.start()
        self._server, self._health = server, state
        by_token = {} if self.token_address is None else {"token_address": self.token_address}
        _log.info("listening", server=self._name, address=self.address, tls=self._tls is not None, **by_token)

    def _bind(self, server: grpc.aio.Server) -> None:
        """Raises CannotStart."""
        if (tls := self._tls) is None:
            self._bind_both(server.add_insecure_port)
            return

        def secure(address: str, *, asks_for_certificate: bool = True) -> int:
            # Credentials of its own for each address: gRPC gets the first certificate once for each credentials.
            credentials = tls.server_credentials(asks_for_certificate=asks_for_certificate)
            return server.add_secure_port(address, credentials)

        self._bind_both(secure)
        if self._token_port is not None:
            by_token = partial(secure, asks_for_certificate=False)
            self._bound_token_port = self._bound("--token-port", self._token_port, by_token)

    def _bind_both(self, bind: Callable[[str], int]) -> None:
        """Listens on the port, and on the local socket if this process may have one. Raises CannotStart."""
        self._bound_port = self._bound("--port", self._port, bind)
        if self._incarnation and local_sockets.EXIST:
            try:
                bind(local_sockets.target(self._incarnation, self._bound_port))
            except RuntimeError:
                _log.info("no local socket; clients on this machine connect by TCP", server=self._name)

    def _bound(self, flag: str, port: int, bind: Callable[[str], int]) -> int:
        address = join_host_port(self._host, port)
        try:
            return bind(address)
        except RuntimeError as error:
            raise CannotStart(
                f"{self._name} cannot listen on {address}: the port is in use, or the host is not one of this machine;"
                f" choose another with {flag} (0: any free one) or --host"
            ) from error

    @property
    def port(self) -> int:
        """The bound port. Available after `start`, also after `stop`."""
        if not self._bound_port:
            raise RuntimeError(f"{self._name} has not started")
        return self._bound_port

    @property
    def address(self) -> str:
        """`HOST:PORT` as bound. Available after `start`."""
        return join_host_port(self._host, self.port)

    @property
    def token_address(self) -> str | None:
        """`HOST:PORT` for clients with a token and no certificate; None if there is none. Available after `start`."""
        return None if self._bound_token_port is None else join_host_port(self._host, self._bound_token_port)

    @property
    def serving(self) -> bool:
        """The status that health checks report."""
        return self._health is not None and self._health.serving

    def set_serving(self, serving: bool = True) -> None:
        """Sets the status that health checks report. Only after `start`."""
        if self._health is None:
            raise RuntimeError(f"{self._name} has not started")
        if serving != self._health.serving:
            self._health.set_serving(serving)
            _log.info("serving" if serving else "not serving", server=self._name)

    async def stop(self, grace_s: float = 0.0) -> None:
        """Stops in order: NOT_SERVING, no new rpcs, `grace_s` for active ones, then they are cancelled.

        May be called again, also before `start`.
        """
        server, self._server = self._server, None
        if server is None:
            return
        if self._health is not None:
            self._health.close()
        await server.stop(grace_s)
        _log.info("stopped", server=self._name)
