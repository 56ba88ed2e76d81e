"""What identifies a call that its caller may repeat. Pure."""

from __future__ import annotations

from typing import Final, NamedTuple

WITHOUT_EFFECT: Final = ("shard_key", "affinity_key", "prefix_blocks")
"""Options that a call with a request id refuses, unless it has an ordering key."""
NO_EFFECT: Final = "has no effect on a call with a request_id, which determines its replica: leave one of them empty"

KEEP_S: Final = 60.0
"""Replicas remember a call for this long after its end, and routers its partition's earlier owners."""


class CallIdentity(NamedTuple):
    """Of two calls of one caller with one id, in one endpoint or slot, the second is a repetition."""

    request_id: str
    """Chosen by the caller."""
    digest: bytes
    """Hash of the rpc, its method, model and arguments. Another call with the same id is refused."""
    caller: str = ""
    """Name of the identity that calls; empty without authentication."""
    slot: bytes = b""
    """At a replica: the secret of the slot that the call runs in. Empty: it runs in none."""
