"""gRPC channels and their options, and those of servers, each with its reason; bearer tokens on channels.

Purpose: the one place for the options by which grpcio handles bursts, outages and silent peers well.
Invariants: both sides agree on the largest metadata, and no server sends more than a client accepts. Tokens are sent
over TLS only, which the `Dialer` ensures, and appear in no repr, log or message.
"""

from __future__ import annotations

import re
import resource
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol, Self

import grpc

from slotmesh.grpc_internals.completion_wakes import keep_wakes_few
from slotmesh.security.handshakes import Attempt, ConnectionProblem, handshake_problem
from slotmesh.security.identity import Role, server_name
from slotmesh.status import unauthenticated
from slotmesh.streams.limits import DEFAULT_LIMITS, MAX_MESSAGE_BYTES, MAX_PENDING, EdgeLimits
from slotmesh.units import join_host_port, parse_host_port
from slotmesh.user_code import type_name

Token = str | Callable[[], str]
"""A token, or a function that returns it. The function is called in the caller's thread for each rpc, and must not
block.

A token can thus be replaced while connections are open.
"""

_TOKEN: Final = re.compile(r"[A-Za-z0-9._~+/-]+=*")
"""The form of RFC 6750."""
_MAX_LENGTH: Final = 8192


class NoToken(ValueError):
    """There is no valid token; the message contains no part of it."""


class TokenSource:
    """Makes the header with the token."""

    def __init__(self, token: Token) -> None:
        """Raises NoToken if the token is an invalid str."""
        self._token = token
        if not callable(token):
            self.authorization()

    def authorization(self) -> str:
        """The value of the metadata `authorization`.

        Raises:
            NoToken: the function failed, or returned no valid token.
        """
        try:
            token = self._token() if callable(self._token) else self._token
        except BaseException as error:  # noqa: BLE001 - whatever the application's function raises
            # The message of the exception may contain the token.
            raise NoToken(f"the function that gives the token raised {type_name(error)}") from None
        if not issubclass(type(token), str):
            raise NoToken(f"the token must be a str, got {type_name(token)}")
        token = str.__str__(token)  # ignores overridden methods of a subclass
        if not _TOKEN.fullmatch(token) or len(token) > _MAX_LENGTH:
            raise NoToken(
                f"the token is none that can be sent: 1 to {_MAX_LENGTH} letters, digits and . _ ~ + / -, without "
                "spaces and line ends"
            )
        return f"Bearer {token}"

    def __repr__(self) -> str:
        return "<token>"


class TokenChannel(grpc.aio.Channel):
    """Adds `authorization` to the metadata of each rpc.

    gRPC's call credentials would start a thread for each rpc, and interceptors would wrap the call objects.
    """

    def __init__(self, channel: grpc.aio.Channel, token: TokenSource) -> None:
        """Owns the channel: closing this one closes it."""
        self._channel = channel
        self._token = token

    async def __aenter__(self) -> Self:
        await self._channel.__aenter__()
        return self

    async def __aexit__(self, *raised: Any) -> None:
        await self._channel.__aexit__(*raised)

    async def close(self, grace: float | None = None) -> None:
        await self._channel.close(grace)

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        return self._channel.get_state(try_to_connect)

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        await self._channel.wait_for_state_change(last_observed_state)

    async def channel_ready(self) -> None:
        await self._channel.channel_ready()

    def unary_unary(self, *args: Any, **options: Any) -> Any:
        return _WithToken(self._channel.unary_unary(*args, **options), self._token)

    def unary_stream(self, *args: Any, **options: Any) -> Any:
        return _WithToken(self._channel.unary_stream(*args, **options), self._token)

    def stream_unary(self, *args: Any, **options: Any) -> Any:
        return _WithToken(self._channel.stream_unary(*args, **options), self._token)

    def stream_stream(self, *args: Any, **options: Any) -> Any:
        return _WithToken(self._channel.stream_stream(*args, **options), self._token)


class _WithToken:
    """A multi-callable of any kind."""

    __slots__ = ("_begin", "_token")

    def __init__(self, begin: Any, token: TokenSource) -> None:
        self._begin = begin
        self._token = token

    def __call__(self, *args: Any, metadata: Any = None, **options: Any) -> Any:
        """Begins the rpc. Raises AioRpcError with UNAUTHENTICATED if there is no token."""
        try:
            authorization = self._token.authorization()
        except NoToken as error:
            raise unauthenticated(str(error)) from None
        return self._begin(*args, metadata=(*(metadata or ()), ("authorization", authorization)), **options)


MAX_METADATA_BYTES = 16 * 1024
"""Largest metadata of an rpc. Soft and hard limit are equal: between the two grpcio rejects at random."""

LOOKAHEAD_BYTES = 1024 * 1024
"""A stream buffers 1.5 times this unread. Bounds memory by the number of streams, as BDP probing is off."""

Options = Sequence[tuple[str, int]]


_SHARED: Options = (
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_metadata_size", MAX_METADATA_BYTES),
    ("grpc.absolute_max_metadata_size", MAX_METADATA_BYTES),
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", LOOKAHEAD_BYTES),
    # With this small look-ahead, the usual 16 KiB frames would halve the throughput of messages of a megabyte.
    ("grpc.http2.max_frame_size", LOOKAHEAD_BYTES),
    ("grpc.keepalive_timeout_ms", 5_000),
    # Otherwise the ping of a keepalive is given up after a minute, whatever its own timeout.
    ("grpc.http2.ping_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
)

CHANNEL_OPTIONS: Options = (
    *_SHARED,
    # A server whose host vanished (no FIN, no RST) is found after 15 s.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    # The default waits another 4 s after a peer returns from an outage of 12 s.
    ("grpc.initial_reconnect_backoff_ms", 100),
    # Despite its name, also the minimum timeout of a connection attempt: TCP and HTTP/2, also over slow links.
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # The mesh decides which calls are safe to retry; the transport cannot.
    ("grpc.enable_retries", 0),
    # `http_proxy`, which container engines set, is for other programs: a proxy would have to reach every member, and
    # know
    # their addresses.
    ("grpc.enable_http_proxy", 0),
    # A separate connection for each channel: closing the channel closes it.
    ("grpc.use_local_subchannel_pool", 1),
)
"""Options of every channel."""


def server_options(limits: EdgeLimits = DEFAULT_LIMITS, listeners: int = 1) -> Options:
    """Options of every server. `listeners`: its ports and local sockets, each of which gRPC limits alone."""
    idle_ms = _ms(limits.connection_idle_timeout_s)
    return (
        *_SHARED,
        # A client that vanished is found after 25 s. Pings of our clients come before that, so a connection carries one
        # side's pings, not both: they are most of what a thousand idle connections cost.
        ("grpc.keepalive_time_ms", 20_000),
        ("grpc.max_receive_message_length", limits.max_request_bytes),
        # The defaults fail bursts of a few thousand unary calls with CANCELLED. The mesh limits calls itself; each
        # pending
        # rpc, as in a flood of rpcs that are reset immediately, takes 17 KB.
        ("grpc.server.max_pending_requests", MAX_PENDING),
        ("grpc.server.max_pending_requests_hard_limit", MAX_PENDING),
        # By default, silent connections are held for 120 s, in any number.
        ("grpc.server_handshake_timeout_ms", _ms(limits.handshake_timeout_s)),
        ("grpc.max_allowed_incoming_connections", limits.max_connections or _max_connections(listeners)),
        # By default, connections without an rpc are held forever.
        *([("grpc.max_connection_idle_ms", idle_ms)] if idle_ms else []),
        ("grpc.max_concurrent_streams", limits.max_connection_streams),
        # Clients may ping as often as the mesh's own, with and without calls.
        ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
        # Otherwise two servers share the same port silently, and split its clients.
        ("grpc.so_reuseport", 0),
    )


class ChannelTls(Protocol):
    """The interface of certificates for channels, implemented by `TlsSource`."""

    @property
    def version(self) -> int:
        """Changes when the certificates do."""

    @property
    def trust_domain(self) -> str:
        """The mesh whose servers are verified by role; empty: servers are verified by their address."""

    @property
    def identity(self) -> str:
        """The identity of the own certificate; empty without one."""

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """The present credentials."""


class Dialer:
    """Opens the channels of a process: in plain text, or by TLS, authenticated by its certificate or token."""

    def __init__(self, tls: ChannelTls | None = None, token: TokenSource | None = None) -> None:
        """`tls` None: in plain text. `token`: sent to routers and controllers, never to replicas.

        Raises:
            ValueError: a token without TLS, which could be read and reused on the network.
        """
        if token is not None and tls is None:
            raise ValueError("a token is sent by TLS only: give the authority of the servers as well")
        self._tls = tls
        self._token = token

    @property
    def version(self) -> int:
        """Changes when certificates do: reconnects open a new channel, as the old credentials would be refused."""
        return 0 if self._tls is None else self._tls.version

    def open(
        self, address: str, server: Role, backend: str = "", *, host: str = "", local: str = ""
    ) -> grpc.aio.Channel:
        """A channel to `HOST:PORT`, connected at first use. The caller closes it.

        By TLS the server must have this role, and a replica this backend, whatever its address. Without a trust domain,
        its certificate must have the name of the address instead: `host`, if it was resolved from that. `local`: the
        target by which gRPC reaches the same server on this machine.

        Raises:
            ValueError: `address` is not HOST:PORT.
        """
        named, port = parse_host_port(address)
        target = local or join_host_port(named, port)
        keep_wakes_few()
        if self._tls is None:
            return grpc.aio.insecure_channel(target, options=CHANNEL_OPTIONS)
        options: list[tuple[str, int | str]] = [*CHANNEL_OPTIONS]
        if domain := self._tls.trust_domain:
            options.append(("grpc.ssl_target_name_override", server_name(domain, server, backend)))
        elif host or local:
            options.append(("grpc.ssl_target_name_override", host or named))
        channel = grpc.aio.secure_channel(target, self._tls.channel_credentials(), options=options)
        # Replicas run users' code, which could reuse a token.
        if self._token is None or server is Role.REPLICA:
            return channel
        return TokenChannel(channel, self._token)

    def explained(self, details: str, server: Role, backend: str = "") -> str:
        """The details of a failed rpc; an explanation with the way out if `problem` has one."""
        problem = self.problem(details, server, backend)
        return details if problem is None else problem.text

    def problem(self, details: str, server: Role, backend: str = "") -> ConnectionProblem | None:
        """Why no connection was made, with the way out; None if neither certificates nor the protocol is the cause."""
        if self._tls is None:
            attempt = Attempt(by_tls=False, server=server)
        else:
            domain = self._tls.trust_domain
            name = server_name(domain, server, backend) if domain else ""
            attempt = Attempt(by_tls=True, server=server, name=name, identity=self._tls.identity)
        return handshake_problem(details, attempt)


PLAIN_TEXT: Final = Dialer()
"""The dialer of a process without certificates."""


def open_channel(address: str) -> grpc.aio.Channel:
    """A channel in plain text to `HOST:PORT`, connected at first use. The caller closes it.

    Raises:
        ValueError: `address` is not HOST:PORT.
    """
    return PLAIN_TEXT.open(address, Role.ROUTER)


def _ms(seconds: float) -> int:
    return round(seconds * 1_000)


def _max_connections(listeners: int) -> int:
    """The connections of each listener. Half of the descriptors stay for everything else."""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 10_000 if descriptors == resource.RLIM_INFINITY else min(10_000, descriptors // 2 // listeners)
