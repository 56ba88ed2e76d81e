"""Settings of every server: its edge, and the address at which the rest of the mesh reaches it.

Invariants: a member never announces a wildcard address: one that listens on a wildcard needs an advertised address, or
does not start. Each configurable bound has a setting with its unit, and its use is visible in metrics: for connections
in process_open_fds. Callers and quotas are defined in `slotmesh.security.quotas`.
"""

from __future__ import annotations

import re
import socket
from datetime import timedelta
from typing import Annotated, Final, Self

from slotmesh.config import Duration, FieldKind, ServiceSettings, Settings, read_with
from slotmesh.config.declaring import Field, model_validator
from slotmesh.config.listening import start_problem
from slotmesh.config.security import TlsSettings, TokenSettings
from slotmesh.names import is_zone
from slotmesh.streams.limits import DEFAULT_LIMITS, EdgeLimits
from slotmesh.units import join_host_port, parse_host_port


def _s(seconds: float) -> timedelta:
    return timedelta(seconds=seconds)


class EdgeSettings(Settings):
    """Base of the settings of every server."""

    max_connections: int | None = Field(
        None,
        ge=1,
        description="Connections that are open at the same time on each port, and on a replica's local socket; further "
        "ones are closed. Default: together half of the descriptors that the process may have, each at most 10,000.",
    )
    max_connection_streams: int = Field(
        DEFAULT_LIMITS.max_connection_streams,
        ge=1,
        le=1_000_000,
        description="Rpcs that may be open on one connection; clients queue further ones.",
    )
    handshake_timeout: Duration = Field(
        _s(DEFAULT_LIMITS.handshake_timeout_s),
        ge=timedelta(milliseconds=100),
        le=timedelta(minutes=10),
        description="Time a new connection has for the handshakes of TLS and HTTP/2.",
    )
    connection_idle_timeout: Duration = Field(
        _s(DEFAULT_LIMITS.connection_idle_timeout_s),
        ge=timedelta(0),
        le=timedelta(days=7),
        description="How long a connection may be without any rpc; clients reconnect when they have one. 0s: forever.",
    )
    opening_timeout: Duration = Field(
        _s(DEFAULT_LIMITS.opening_timeout_s),
        ge=timedelta(milliseconds=100),
        le=timedelta(hours=1),
        description="Time a stream has until its first frame.",
    )
    stream_idle_timeout: Duration = Field(
        _s(DEFAULT_LIMITS.stream_idle_timeout_s),
        ge=timedelta(0),
        le=timedelta(days=7),
        description="How long a stream without calls may be silent; SDKs send heartbeats. 0s: forever.",
    )
    max_streams_per_caller: int = Field(
        DEFAULT_LIMITS.max_streams_per_caller,
        ge=1,
        description="Streams that one caller, authenticated by certificate or token, may have open at this process.",
    )

    @property
    def edge_limits(self) -> EdgeLimits:
        """The limits for the server."""
        return EdgeLimits(
            max_connections=self.max_connections,
            max_connection_streams=self.max_connection_streams,
            handshake_timeout_s=self.handshake_timeout.total_seconds(),
            connection_idle_timeout_s=self.connection_idle_timeout.total_seconds(),
            opening_timeout_s=self.opening_timeout.total_seconds(),
            stream_idle_timeout_s=self.stream_idle_timeout.total_seconds(),
            max_streams_per_caller=self.max_streams_per_caller,
        )


OWN_HOSTNAME: Final = "@hostname"
"""Placeholder for the name of the machine or container of the process."""

WILDCARDS: Final = frozenset({"0.0.0.0", "::"})  # noqa: S104 - compared with, not bound to
"""Hosts that a server may listen on, but clients cannot connect to."""
_HAS_PORT: Final = re.compile(r"[^:]*:[^:]*|\[.*\]:[^:]*")


def _with_own_hostname(text: str) -> str:
    return text.replace(OWN_HOSTNAME, socket.gethostname(), 1) if text.startswith(OWN_HOSTNAME) else text


def _split(text: str) -> tuple[str, int | None]:
    """`HOST` or `HOST:PORT`; an IPv6 address with a port has brackets. Raises ValueError."""
    if _HAS_PORT.fullmatch(text):
        return parse_host_port(text)
    return parse_host_port(join_host_port(text, 1))[0], None


def _advertised(text: str) -> str:
    host, port = _split(_with_own_hostname(text))
    return host if port is None else join_host_port(host, port)


MemberId = Annotated[str, read_with(_with_own_hostname)]
"""An identity. `@hostname` is the machine's name."""

Advertised = Annotated[
    str,
    read_with(_advertised),
    FieldKind("HOST or HOST:PORT", "HOST[:PORT]", such_as=f"10.0.0.7, router.example:7071 or {OWN_HOSTNAME}"),
]
"""The advertised address of a process. Without a port, that of the respective server is used."""


def _check_zone(zone: str) -> None:
    if zone and not is_zone(zone):
        raise ValueError(f"{zone!r} is no zone: 1 to 63 of `a-z A-Z 0-9 _ . -`, first a letter or digit")


class MemberSettings(ServiceSettings, TlsSettings, EdgeSettings):
    """Base of the settings of routers and replicas."""

    advertise: Advertised | None = Field(
        None,
        description="Where the mesh and clients reach this process, if not where it listens; without a port, on the "
        f"port that it listens on. {OWN_HOSTNAME} is the machine's own name.",
    )
    zone: str = Field(
        "",
        check=_check_zone,
        description="Where the process runs, as rack-7 or europe-west4-a: routers prefer replicas of their own zone "
        "until these are full.",
    )

    @property
    def is_announced(self) -> bool:
        """Whether the address of the process is announced to other members."""
        return True

    @model_validator
    def _can_be_reached(self) -> Self:
        if self.is_announced and self.advertise is None and self.host in WILDCARDS:
            raise ValueError(
                f"--advertise HOST[:PORT] (SLOTMESH_ADVERTISE) is required with --host {self.host}: where others reach "
                f"it; {OWN_HOSTNAME} is the machine's own name"
            )
        return self

    def advertised(self, bound: str) -> str:
        """The advertised address of a server bound to `bound`, as HOST:PORT."""
        if self.advertise is None:
            return bound
        host, port = _split(self.advertise)
        return join_host_port(host, parse_host_port(bound)[1] if port is None else port)

    def advertised_metrics(self, bound: str) -> str:
        """The advertised address of the Prometheus endpoint bound to `bound`, which may be a wildcard."""
        host, port = parse_host_port(bound)
        if host not in WILDCARDS or self.advertise is None:
            return bound
        return join_host_port(_split(self.advertise)[0], port)


class TokenPortSettings(MemberSettings, TokenSettings):
    """Base of the settings of routers and controllers, which clients and operators connect to."""

    token_port: int | None = Field(
        None,
        ge=0,
        le=65_535,
        description="A second port for clients with a bearer token, by TLS without a client certificate; 0: any free "
        "one. Needs TLS.",
    )

    @model_validator
    def _has_tokens_for_their_port(self) -> Self:
        if self.token_port is not None and self.tls_paths is not None and not self.accepts_tokens:
            raise ValueError(
                "--token-port: no client could use it: configure tokens with --tokens FILE (`slotmesh token "
                "create` makes one) or --jwt-issuer"
            )
        return self

    @model_validator
    def _has_tls_for_tokens(self) -> Self:
        has_port = self.token_port is not None
        if problem := start_problem(self.host, tls=self.tls_paths is not None, tokens=has_port, insecure=self.insecure):
            raise ValueError(f"--token-port: {problem}")
        return self

    def advertised_token(self, bound: str) -> str:
        """The advertised address of the token port bound to `bound`: --advertise's host, with the bound port.

        Empty if there is none.
        """
        if self.advertise is None or not bound:
            return bound
        return join_host_port(_split(self.advertise)[0], parse_host_port(bound)[1])
