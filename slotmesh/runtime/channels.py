"""The transport's options, for every channel and every server of the mesh, each with its reason.

Purpose: one place for the options by which grpcio handles bursts, outages and silent peers well.
Invariants: both sides agree on the largest metadata, and no server answers more than a client takes.
"""

from __future__ import annotations

import re
import resource
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Final, Protocol, Self

import grpc

from slotmesh.foreign import type_name
from slotmesh.grpc_internals.completion_wakes import keep_wakes_few
from slotmesh.security.handshakes import Attempt, handshake_problem
from slotmesh.security.identity import Role, server_name
from slotmesh.status import unauthenticated
from slotmesh.streams.limits import DEFAULT_LIMITS, MAX_MESSAGE_BYTES, MAX_PENDING, EdgeLimits
from slotmesh.units import join_host_port, parse_host_port

# A channel whose rpcs carry a bearer token.
#
# Purpose: what gRPC's call credentials do, without the thread that those start for each rpc, and without interceptors,
# whose calls are others than the transport's own.
# Invariants: over TLS only, which the `Dialer` sees to. The calls are those of the channel behind it.

# The bearer token that a client shows with each rpc.
#
# Invariants: in no repr, log or message. What a function gives is asked for anew for each rpc, so that a token may be
# replaced while connections live; it has to be quick, as nothing else happens meanwhile.

Token = str | Callable[[], str]
"""A token, or a function that gives it: called for each rpc, in the thread that makes it."""

_TOKEN: Final = re.compile(r"[A-Za-z0-9._~+/-]+=*")
"""As RFC 6750 has it."""
_MAX_LENGTH: Final = 8192


class NoToken(ValueError):
    """There is no token that could be sent; the message has no part of it."""


class TokenSource:
    """Gives the header that carries the token."""

    def __init__(self, token: Token) -> None:
        """Raises NoToken where it is a str that no token can be."""
        self._token = token
        if not callable(token):
            self.authorization()

    def authorization(self) -> str:
        """The value of the metadata `authorization`.

        Raises:
            NoToken: the function failed, or gave none.
        """
        try:
            token = self._token() if callable(self._token) else self._token
        except BaseException as error:  # noqa: BLE001 - whatever the application's function raises
            # Its words may hold the token.
            raise NoToken(f"the function that gives the token raised {type_name(error)}") from None
        if not issubclass(type(token), str):
            raise NoToken(f"the token must be a str, got {type_name(token)}")
        token = str.__str__(token)  # a subclass's own methods are not called
        if not _TOKEN.fullmatch(token) or len(token) > _MAX_LENGTH:
            raise NoToken(
                f"the token is none that can be sent: 1 to {_MAX_LENGTH} letters, digits and . _ ~ + / -, without "
                "spaces and line ends"
            )
        return f"Bearer {token}"

    def __repr__(self) -> str:
        return "<token>"


class TokenChannel(grpc.aio.Channel):
    """Adds `authorization` to the metadata of each rpc."""

    def __init__(self, channel: grpc.aio.Channel, token: TokenSource) -> None:
        """Takes the channel over: closing this one closes it."""
        self._channel = channel
        self._token = token

    async def __aenter__(self) -> Self:
        await self._channel.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._channel.__aexit__(kind, error, traceback)

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
        """Begins the rpc. Raises AioRpcError, UNAUTHENTICATED, where there is no token to be had."""
        try:
            authorization = self._token.authorization()
        except NoToken as error:
            raise unauthenticated(str(error)) from None
        return self._begin(*args, metadata=(*(metadata or ()), ("authorization", authorization)), **options)


MAX_METADATA_BYTES = 16 * 1024
"""Largest metadata of an rpc. Soft and hard limit are equal: between the two grpcio rejects at random."""

LOOKAHEAD_BYTES = 1024 * 1024
"""What a stream buffers unread, and a half more. Memory is bounded by streams times this: probing for more is off."""

Options = Sequence[tuple[str, int]]


_SHARED: Options = (
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_metadata_size", MAX_METADATA_BYTES),
    ("grpc.absolute_max_metadata_size", MAX_METADATA_BYTES),
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", LOOKAHEAD_BYTES),
    # With so little look-ahead, the usual 16 KiB frames would halve the speed of messages of a megabyte.
    ("grpc.http2.max_frame_size", LOOKAHEAD_BYTES),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
)

CHANNEL_OPTIONS: Options = (
    *_SHARED,
    # A server whose host vanished (no FIN, no RST) is found after 15 s.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    # By default a peer that was away for 12 s is missed for another 4.
    ("grpc.initial_reconnect_backoff_ms", 100),
    # In spite of its name, what one attempt to connect may take at least: TCP and HTTP/2, over slow links as well.
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # The mesh decides what is safe to try again; the transport does not know.
    ("grpc.enable_retries", 0),
    # `http_proxy` in the environment, which container engines set, is for other programs: a proxy would have to reach
    # every member, and see where each of them is.
    ("grpc.enable_http_proxy", 0),
    # A connection of its own for each channel: closing the channel closes it.
    ("grpc.use_local_subchannel_pool", 1),
)
"""Options of every channel."""


def server_options(limits: EdgeLimits = DEFAULT_LIMITS) -> Options:
    """Options of every server."""
    idle_ms = _ms(limits.connection_idle_timeout_s)
    return (
        *_SHARED,
        # A client that vanished is found after 25 s. Pings of our clients come before that, so a connection carries one
        # side's pings, not both: they are most of what a thousand idle connections cost.
        ("grpc.keepalive_time_ms", 20_000),
        ("grpc.max_receive_message_length", limits.max_request_bytes),
        # The defaults fail bursts of a few thousand unary calls with CANCELLED. Admission is ours; what waits for it,
        # as in a flood of rpcs that are reset at once, takes 17 KB each.
        ("grpc.server.max_pending_requests", MAX_PENDING),
        ("grpc.server.max_pending_requests_hard_limit", MAX_PENDING),
        # Silent connections would be held for 120 s, in any number.
        ("grpc.server_handshake_timeout_ms", _ms(limits.handshake_timeout_s)),
        ("grpc.max_allowed_incoming_connections", limits.max_connections or _max_connections()),
        # And those without an rpc for ever.
        *([("grpc.max_connection_idle_ms", idle_ms)] if idle_ms else []),
        ("grpc.max_concurrent_streams", limits.max_connection_streams),
        # Clients may ping as often as our own do, with and without calls.
        ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
        # Otherwise two servers take the same port without a word, and split its clients.
        ("grpc.so_reuseport", 0),
    )


class ChannelTls(Protocol):
    """What channels need of certificates. A `TlsSource` has it."""

    @property
    def version(self) -> int:
        """Changes when the certificates do."""

    @property
    def trust_domain(self) -> str:
        """The mesh whose servers are asked for their role; empty: servers have to show a name of their address."""

    @property
    def identity(self) -> str:
        """What the own certificate names; empty without one."""

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """Those of now."""


class Dialer:
    """Opens the channels of a process: in plain text, or by TLS, as whom its certificate or its token names."""

    def __init__(self, tls: ChannelTls | None = None, token: TokenSource | None = None) -> None:
        """`tls` None: in plain text. `token`: shown to routers and controllers, never to replicas.

        Raises:
            ValueError: a token without TLS: everybody between here and the server could read and use it.
        """
        if token is not None and tls is None:
            raise ValueError("a token is sent by TLS only: give the authority of the servers as well")
        self._tls = tls
        self._token = token

    @property
    def version(self) -> int:
        """Changes when certificates do: what connects again opens a new channel, as one of before would be refused."""
        return 0 if self._tls is None else self._tls.version

    def open(self, address: str, server: Role, backend: str = "") -> grpc.aio.Channel:
        """A channel to `HOST:PORT`, connected at first use. The caller closes it.

        By TLS the server has to be one of this role, and a replica one of this backend, whatever its address. Where
        nothing names a trust domain, its certificate has to name the address instead.

        Raises:
            ValueError: `address` is not HOST:PORT.
        """
        host, port = parse_host_port(address)
        target = join_host_port(host, port)
        keep_wakes_few()
        if self._tls is None:
            return grpc.aio.insecure_channel(target, options=CHANNEL_OPTIONS)
        options: list[tuple[str, int | str]] = [*CHANNEL_OPTIONS]
        if domain := self._tls.trust_domain:
            options.append(("grpc.ssl_target_name_override", server_name(domain, server, backend)))
        channel = grpc.aio.secure_channel(target, self._tls.channel_credentials(), options=options)
        # Replicas run code of handlers: a token that they were shown could be used elsewhere.
        if self._token is None or server is Role.REPLICA:
            return channel
        return TokenChannel(channel, self._token)

    def explained(self, details: str, server: Role, backend: str = "") -> str:
        """What an rpc says that has failed; where that is for certificates, in words with the way out."""
        return self.problem(details, server, backend) or details

    def problem(self, details: str, server: Role, backend: str = "") -> str | None:
        """Why no connection was made, in words with the way out; None where that is not for certificates."""
        if self._tls is None:
            attempt = Attempt(by_tls=False, server=server)
        else:
            domain = self._tls.trust_domain
            name = server_name(domain, server, backend) if domain else ""
            attempt = Attempt(by_tls=True, server=server, name=name, identity=self._tls.identity)
        return handshake_problem(details, attempt)


PLAIN_TEXT: Final = Dialer()
"""Of a process without certificates."""


def open_channel(address: str) -> grpc.aio.Channel:
    """A channel in plain text to `HOST:PORT`, connected at first use. The caller closes it.

    Raises:
        ValueError: `address` is not HOST:PORT.
    """
    return PLAIN_TEXT.open(address, Role.ROUTER)


def _ms(seconds: float) -> int:
    return round(seconds * 1_000)


def _max_connections() -> int:
    """Half of the descriptors stay for everything else."""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 10_000 if descriptors == resource.RLIM_INFINITY else min(10_000, descriptors // 2)
