"""The transport's options, for every channel and every server of the mesh, each with its reason.

Purpose: one place for the options by which grpcio handles bursts, outages and silent peers well.
Invariants: both sides agree on the largest metadata, and no server answers more than a client takes.
"""

from __future__ import annotations

import resource
from collections.abc import Sequence
from typing import Final, Protocol

import grpc

from slotmesh.runtime.completion_wakes import keep_wakes_few
from slotmesh.runtime.token_channel import TokenChannel
from slotmesh.security.failed_handshakes import Attempt, handshake_problem
from slotmesh.security.identity import Role, server_name
from slotmesh.security.token_source import TokenSource
from slotmesh.units import join_host_port, parse_host_port
from slotmesh.wire.edge_limits import DEFAULT_LIMITS, EdgeLimits
from slotmesh.wire.limits import MAX_MESSAGE_BYTES

MAX_METADATA_BYTES = 16 * 1024
"""Largest metadata of an rpc. Soft and hard limit are equal: between the two grpcio rejects at random."""

LOOKAHEAD_BYTES = 1024 * 1024
"""What a stream buffers unread, and a half more. Memory is bounded by streams times this: probing for more is off."""

Options = Sequence[tuple[str, int]]

MAX_PENDING = 20_000
"""Rpcs that have come and that the event loop has not seen, of each method; more are refused by gRPC. So many wait to
begin as well, for the methods that are called most. As many as one connection may have by default."""

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
