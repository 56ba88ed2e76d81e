"""The bounds of a server's edge: connections, streams that are silent, streams of one caller.

Apart from the settings that choose them (`slotmesh.config.edge`), as clients need them without any setting.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

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
