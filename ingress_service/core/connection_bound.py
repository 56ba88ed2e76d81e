"""How many connections there are, and from where. Pure.

Invariants: as `FairBound` has them; a trusted proxy has connections of many clients, and no share.
Owner: the app; connections take and give.
"""

from __future__ import annotations

from typing import Final

from ingress_service.core.peers import PeerAddresses, address_of
from slotmesh.security.fair_bound import FairBound

FLOOR: Final = 16
"""An address with no more connections than these finds the reserve."""


class ConnectionBound:
    """Of one ingress."""

    def __init__(self, most: int, peers: PeerAddresses) -> None:
        self._bound: FairBound[str] = FairBound.within(most, FLOOR)
        self._peers = peers

    def take(self, host: str) -> bool:
        """Whether there may be one more from this address."""
        address = address_of(host)
        if self._bound.over(address, 1, has_share=not self._peers.is_proxy(host)) is not None:
            return False
        self._bound.take(address, 1)
        return True

    def give(self, host: str) -> None:
        """One has ended."""
        self._bound.give(address_of(host), 1)
