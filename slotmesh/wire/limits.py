"""Bounds of what a stream carries, and sizes at which it is cut: one number for all users of the same bound.

The bound of one thing of one process is declared beside that thing.
"""

from __future__ import annotations

from typing import Final

# -- ids and texts -----------------------------------------------------------------------------------------------------

MAX_CALL_ID: Final = 2**53 - 1
"""Largest call id: JSON numbers carry it without loss."""

MAX_MESSAGE_CHARS: Final = 4_096
"""Characters of a failure's message that come from users' code; the rest is cut off."""

# -- messages --------------------------------------------------------------------------------------------------------

MAX_MESSAGE_BYTES: Final = 32 * 1024 * 1024
"""Largest message, unless a server takes less. Whole routing tables go both ways between controllers and routers, and
the largest meshes to controllers; payloads are far below."""

MAX_ROUTER_REQUEST_BYTES: Final = 16 * 1024 * 1024
"""Largest message to a router. The transport reads it before anybody is asked who sends it, so it is no larger than
clients need: a frame has payloads of 1 MiB, or one of 4 MiB, and 8 MiB of ordering keys where all are as long as may
be."""

TABLE_PART_BYTES: Final = 32 * 1024
"""What a part of a routing table has, about: converting it holds an event loop for some milliseconds."""

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
"""What one chunk carries at most. Payloads up to this size travel inline: they are no longer than a chunk."""

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
"""Rosters that a client names when it opens a stream: one of each generation, of which there is a new one only where a
controller that does not remember has started."""

MAX_METHODS: Final = 1_024
"""Names of a handler's methods that a replica tells a router; more are left out."""
