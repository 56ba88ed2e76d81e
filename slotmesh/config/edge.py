"""Settings of a server's edge: limits of connections, silent streams, and streams of one caller.

Invariants: each configurable bound has a setting with its unit, and its use is visible in metrics: for connections in
process_open_fds. Callers and quotas are defined in `slotmesh.security.quotas`.
"""

from __future__ import annotations

from datetime import timedelta

from slotmesh.config import Duration, Settings
from slotmesh.config.declaring import Field
from slotmesh.streams.limits import DEFAULT_LIMITS, EdgeLimits


def _s(seconds: float) -> timedelta:
    return timedelta(seconds=seconds)


class EdgeSettings(Settings):
    """Base of the settings of every server."""

    max_connections: int | None = Field(
        None,
        ge=1,
        description="Connections that are open at the same time; further ones are closed. Default: half of the "
        "descriptors that the process may have, at most 10,000.",
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
