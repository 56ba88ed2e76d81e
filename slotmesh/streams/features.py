"""Optional behaviours of streams, by the names that both ends exchange when a stream opens.

Each end announces the features that it supports, and a behaviour is used if the end that has to support it has
announced it. The protos specify what a name means, at `OpenStream` and `StreamOpened`; unknown names are ignored.
Between the servers of a mesh, and between clients and replicas, there are none.
"""

from __future__ import annotations

from typing import Final

# -- between client and router -----------------------------------------------------------------------------------------

SESSIONS: Final = "sessions"
"""A router keeps sessions: their calls outlive a connection. Named by clients that have one, too."""

RESENT_ALL: Final = "resent_all"
"""A client marks the end of the calls that it sends again."""

TAKE_ITEMS: Final = "take_items"
"""A client acknowledges values of handlers that yield. For others, values count as taken when written."""

ORDERING_KEYS: Final = "ordering_keys"
"""A router takes calls of several ordering keys in one batch."""

STOP_GENERATION: Final = "stop_generation"
"""A router has lanes that stop at failures, where calls ask for that."""

LARGE_BESIDE: Final = "large_beside"
"""A router takes one call that is larger than the window beside all others."""

EXECUTORS: Final = "executors"
"""A client gets the name of the replica that has executed each of its calls."""

CHUNKS: Final = "chunks"
"""The end that names it takes large payloads in chunks of up to 1 MiB."""

BLOCKS: Final = "blocks"
"""The end that names it reads payloads of a batch in one block."""

# -- the names of each end ---------------------------------------------------------------------------------------------

OF_CLIENTS: Final = (CHUNKS, TAKE_ITEMS, BLOCKS)
"""What a client names to its router."""

OF_CLIENTS_IN_SESSIONS: Final = (SESSIONS, RESENT_ALL)
"""Further names of a client with a session."""

OF_ROUTERS_TO_CLIENTS: Final = (
    SESSIONS,
    CHUNKS,
    TAKE_ITEMS,
    ORDERING_KEYS,
    STOP_GENERATION,
    LARGE_BESIDE,
    EXECUTORS,
    BLOCKS,
)
"""What a router names to its clients."""
