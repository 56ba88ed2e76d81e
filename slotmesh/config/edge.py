"""The settings of what reaches a server from outside: connections, streams that say nothing, streams of one caller.

Invariants: each bound that operators may choose has its setting, with its unit; what they bound is counted in metrics,
process_open_fds for connections. Who is told apart, and from when on, is in `slotmesh.security.quotas`.
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
        description="Connections that are held at once; more are closed as they come. Not given: half of the "
        "descriptors that the process may have, 10,000 at most.",
    )
    max_connection_streams: int = Field(
        DEFAULT_LIMITS.max_connection_streams,
        ge=1,
        le=1_000_000,
        description="Rpcs that may be open on one connection; clients keep back what is more.",
    )
    handshake_timeout: Duration = Field(
        _s(DEFAULT_LIMITS.handshake_timeout_s),
        ge=timedelta(milliseconds=100),
        le=timedelta(minutes=10),
        description="Time a new connection has for its handshakes, of TLS and of HTTP/2.",
    )
    connection_idle_timeout: Duration = Field(
        _s(DEFAULT_LIMITS.connection_idle_timeout_s),
        ge=timedelta(0),
        le=timedelta(days=7),
        description="How long a connection may be without any rpc; clients connect again when they "
        "have one. 0s: for ever.",
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
        description="How long a stream without calls may be silent; SDKs send heartbeats. 0s: for ever.",
    )
    max_streams_per_caller: int = Field(
        DEFAULT_LIMITS.max_streams_per_caller,
        ge=1,
        description="Streams that one caller, known by certificate or token, may have open at this process.",
    )

    @property
    def edge_limits(self) -> EdgeLimits:
        """What the server is told."""
        return EdgeLimits(
            max_connections=self.max_connections,
            max_connection_streams=self.max_connection_streams,
            handshake_timeout_s=self.handshake_timeout.total_seconds(),
            connection_idle_timeout_s=self.connection_idle_timeout.total_seconds(),
            opening_timeout_s=self.opening_timeout.total_seconds(),
            stream_idle_timeout_s=self.stream_idle_timeout.total_seconds(),
            max_streams_per_caller=self.max_streams_per_caller,
        )
