"""Bounds on the content of streams, and the sizes at which it is cut: one constant for all users of a bound.

A bound on one thing in one process is declared beside that thing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

# -- ids and texts -----------------------------------------------------------------------------------------------------

MAX_CALL_ID: Final = 2**53 - 1
"""Largest call id: JSON numbers carry it without loss."""

MAX_MESSAGE_CHARS: Final = 4_096
"""Characters of a failure's message from users' code; the rest is cut off."""

# -- messages --------------------------------------------------------------------------------------------------------

MAX_MESSAGE_BYTES: Final = 32 * 1024 * 1024
"""Largest message, unless a server accepts less. Whole routing tables go both ways between controllers and routers, and
the largest meshes to controllers; payloads are far below."""

MAX_ROUTER_REQUEST_BYTES: Final = 16 * 1024 * 1024
"""Largest message to a router. The transport reads it before the sender is authenticated, so it is no larger than
clients need: a frame has payloads of 2 MiB, or one of 4 MiB, and 8 MiB of ordering keys if all have the largest
length."""

TABLE_PART_BYTES: Final = 32 * 1024
"""Approximate size of a part of a routing table: converting it blocks an event loop for some milliseconds."""

# -- frames ------------------------------------------------------------------------------------------------------------

MAX_FRAME_CALLS: Final = 16_384
"""Calls that a router or a replica puts into one frame."""

MAX_FRAME_BYTES: Final = 1024 * 1024
"""Payload bytes of one frame, unless one payload alone has more."""

MAX_FRAME_RANGES: Final = 4_096
"""Ranges of ids in a frame, as of cancelled or acknowledged calls: each costs its reader as much as a call. One has 20
bytes at most."""

MAX_ELEMENTS: Final = 50_000
"""Batches, payloads, keys, ranges and ids of one frame, in all: more are refused. Clients send 8,192 calls in a frame
at most."""

MAX_OPTIONS_BYTES: Final = 64 * 1024
"""Options of a call as they travel: more than method, keys and metadata can have."""

# -- payloads ----------------------------------------------------------------------------------------------------------

CHUNK_BYTES: Final = 256 * 1024
"""What one chunk carries at most while other frames leave between chunks. Payloads
up to this size travel inline: they are no longer than a chunk. So does a larger one that fits into its frame
(`MAX_FRAME_BYTES`): a message costs as much as copying hundreds of kilobytes."""

LARGE_CHUNK_BYTES: Final = MAX_FRAME_BYTES
"""The same while no other frames leave between the chunks."""

MIN_CHUNK_BYTES: Final = 16 * 1024
"""What one chunk carries at least, unless it is the last of its payload: each is a frame, and costs as much."""

MAX_INLINE_BYTES: Final = 4 * 1024 * 1024
"""Largest payload that is accepted inline, from a peer without chunks."""

MAX_PAYLOAD_BYTES: Final = 64 * 1024 * 1024
"""Largest payload, unless configured otherwise."""

# -- what may be under way ---------------------------------------------------------------------------------------------

START_WINDOW_CALLS: Final = 1_024
"""Calls that a client may have unanswered before its router has granted a window."""

START_WINDOW_BYTES: Final = 4 * 1024 * 1024
"""Payload bytes of these calls."""

MAX_VALUES_AHEAD: Final = 256
"""Values of one call that a handler which yields may be ahead of its caller."""

MAX_BYTES_AHEAD: Final = 1024 * 1024
"""Bytes that it may be ahead; one value it always may."""

# -- what both ends remember of one session ----------------------------------------------------------------------------

MAX_STOP_GENERATIONS: Final = 16
"""Generations of one ordering key of which it is known where they have stopped: calls of some that are over may wait,
or come back from replicas."""

MAX_ROSTERS: Final = 64
"""Rosters that a client names when it opens a stream: one of each generation and term, of which there is a new one
only where a controller has started."""

MAX_METHODS: Final = 1_024
"""Names of a handler's methods that a replica reports to a router; more are left out."""


# -- the edge of a server: connections, silent streams, streams of one caller ------------------------------------------
# Apart from the settings that choose them (`slotmesh.config.members`), as clients need them without any setting.

IDLE_HEARTBEAT_S: Final = 60.0
"""Sessions without calls send a heartbeat this often. More often where streams may be silent for less than
`HEARTBEATS_PER_TIMEOUT` times as long. gRPC's own pings keep the connection alive meanwhile."""
HEARTBEATS_PER_TIMEOUT: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeLimits:
    """The bounds of one server's edge. The defaults are those of the settings."""

    max_connections: int | None = None
    """None: bounded by the file descriptors."""
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
    """Of one received message: what the protocol needs, so there is no setting for it."""

    @property
    def idle_heartbeat_s(self) -> float:
        """The largest interval between heartbeats of a session without calls. 0: the interval of any session."""
        timeout_s = self.stream_idle_timeout_s
        allowed_s = min(timeout_s / HEARTBEATS_PER_TIMEOUT, IDLE_HEARTBEAT_S) if timeout_s else IDLE_HEARTBEAT_S
        return allowed_s if allowed_s > 1.0 else 0.0


DEFAULT_LIMITS = EdgeLimits()


MAX_PENDING = 20_000
"""Rpcs of each method that have arrived and that the event loop has not seen; gRPC refuses more. The same number waits
to start, for the methods that are called most. The default bound of one connection."""
