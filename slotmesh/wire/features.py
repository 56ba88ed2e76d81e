"""Optional behaviours of streams, by the names that both ends exchange when a stream opens.

Each end names what it knows, and a behaviour is used where the end that has to know of it has named it. What a name
means is specified in the protos, at `OpenStream`, `StreamOpened` and `OpenExecute`; one that is not known is passed
over.
"""

from __future__ import annotations

from typing import Final

# -- between client and router -----------------------------------------------------------------------------------------

SESSIONS: Final = "sessions"
"""A router keeps sessions: their calls outlive a connection. Named by clients that have one, too."""

RESENT_ALL: Final = "resent_all"
"""A client says when it has sent all again that was unanswered."""

TAKE_ITEMS: Final = "take_items"
"""A client says which values of handlers that yield it has taken. Of any other, a router takes what it has written."""

ORDERING_KEYS: Final = "ordering_keys"
"""A router takes calls of several ordering keys in one batch."""

STOP_GENERATION: Final = "stop_generation"
"""A router has lanes that stop at failures, where calls ask for that."""

LARGE_BESIDE: Final = "large_beside"
"""A router takes one call that is larger than the window beside all others."""

EXECUTORS: Final = "executors"
"""A client is told which replica has executed each of its calls."""

# -- between router and replica ----------------------------------------------------------------------------------------

HEARTBEATS: Final = "heartbeats"
"""A router echoes heartbeats: its runs start only while it does."""

SERVICE_TIMES: Final = "service_times"
"""A router chooses by service times how many calls travel together."""

# -- on all streams ----------------------------------------------------------------------------------------------------

CHUNKS: Final = "chunks"
"""Whoever names it puts large payloads together from chunks."""

# -- who names what ----------------------------------------------------------------------------------------------------

OF_CLIENTS: Final = (CHUNKS, TAKE_ITEMS)
"""What a client names to its router."""

OF_CLIENTS_IN_SESSIONS: Final = (SESSIONS, RESENT_ALL)
"""What a client names besides, where it has a session."""

OF_ROUTERS_TO_CLIENTS: Final = (SESSIONS, CHUNKS, TAKE_ITEMS, ORDERING_KEYS, STOP_GENERATION, LARGE_BESIDE, EXECUTORS)
"""What a router names to its clients."""

OF_ROUTERS_TO_REPLICAS: Final = (HEARTBEATS, CHUNKS, SERVICE_TIMES)
"""What a router names to its replicas."""
