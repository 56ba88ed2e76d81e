"""The settings of what reaches a server from outside: connections, streams that say nothing, streams of one caller.

Invariants: each bound that operators may choose has its setting, with its unit; what they bound is counted in metrics,
process_open_fds for connections. Who is told apart, and from when on, is in `slotmesh.security.quotas`.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from pydantic import Field

from slotmesh.config import Duration, Settings
from slotmesh.wire.limits import MAX_MESSAGE_BYTES

IDLE_HEARTBEAT_S: Final = 60.0
"""Sessions without calls send a heartbeat this often. More often where streams may be silent for less than
`HEARTBEATS_PER_TIMEOUT` times as long. gRPC's own pings keep the connection alive meanwhile."""
HEARTBEATS_PER_TIMEOUT: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeLimits:
    """The bounds of one server's edge. The defaults are those of the settings."""

    max_connections: int | None = None
    """None: as many as there are descriptors for."""
    max_connection_streams: int = 20_000
    """Rpcs that may be open on one connection."""
    handshake_timeout_s: float = 5.0
    connection_idle_timeout_s: float = 600.0
    """0: never."""
    opening_timeout_s: float = 10.0
    stream_idle_timeout_s: float = 3_600.0
    """0: never."""
    max_streams_per_caller: int = 1_024
    max_request_bytes: int = MAX_MESSAGE_BYTES
    """Of one message that comes in: what the protocol needs, so there is no setting for it."""

    @property
    def idle_heartbeat_s(self) -> float:
        """How far apart the heartbeats of a session without calls may be. 0: no further than those of any other."""
        timeout_s = self.stream_idle_timeout_s
        allowed_s = min(timeout_s / HEARTBEATS_PER_TIMEOUT, IDLE_HEARTBEAT_S) if timeout_s else IDLE_HEARTBEAT_S
        return allowed_s if allowed_s > 1.0 else 0.0


DEFAULT_LIMITS = EdgeLimits()


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
