"""What identifies a call, or a reservation, that its caller may repeat. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
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


class ReservationIdentity(NamedTuple):
    """Of two reservations of one caller with one id, the second is a repetition: it gets the slot of the first."""

    request_id: str
    """Chosen by the caller."""
    digest: bytes
    """Hash of what is reserved. Another reservation with the same id is refused."""
    caller: str = ""
    """Name of the identity that reserves; empty without authentication."""
    attempt: int = 0
    """The number of earlier requests with this id whose answer the caller does not have."""
    resend: int = 0
    """The number of earlier sendings of this attempt by its router that were not answered."""

    @property
    def key(self) -> tuple[str, str]:
        """Equal for all attempts."""
        return self.caller, self.request_id

    @property
    def order(self) -> tuple[int, int]:
        """Of two attempts the newer one has the higher order."""
        return self.attempt, self.resend


def reservation_digest(terms: Iterable[str]) -> bytes:
    """The hash of the terms of a reservation."""
    return blake2b("\0".join(terms).encode(), digest_size=8).digest()
