"""Earlier owners of partitions: where calls with a request id may have been executed before their partition moved.

Purpose: a replica remembers such a call for a minute after its end. If its partition has moved since, the router asks
each earlier owner first. One that does not remember the call refuses it, as it owns the partition no longer, and will
never run it.
Invariants: a move is remembered for as long as an outcome may be kept, from when the table showed it, which is later
than the last end of a call at the earlier owner. An epoch that grows by more than one tells of owners that this router
has missed: then each replica that owned a partition before, or does now, may be one. At most `MAX_MOVES` of the newest
are remembered. Moves before this router's first table are not known.
Owner: the topology.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Final

from router_service.core.rosters import ReplicaKey
from router_service.core.routing_table import EndpointRoute

KEEP_S: Final = 60.0
MAX_MOVES: Final = 262_144
"""About 250 bytes each."""


class EarlierOwners:
    """The moves of the last minute."""

    __slots__ = ("_keys", "_moves")

    def __init__(self) -> None:
        self._moves: deque[tuple[float, str, int, int]] = deque()
        """Until when each is remembered, endpoint, partition and number of earlier owners; oldest first."""
        self._keys: dict[tuple[str, int], tuple[ReplicaKey, ...]] = {}
        """By endpoint and partition, oldest first."""

    def changed(self, before: Mapping[str, EndpointRoute], after: Mapping[str, EndpointRoute], now: float) -> None:
        """Notes the partitions that have another owner in the table after than in the one before."""
        self._forget(now)
        for name, route in after.items():
            known = before.get(name)
            if known is None or known.owners is route.owners or len(known.owners) != len(route.owners):
                continue
            any_owner = tuple(dict.fromkeys((*known.owners.keys, *route.owners.keys)))
            epochs = zip(known.owners.epochs(), route.owners.epochs(), strict=True)
            for number in [number for number, (was, is_now) in enumerate(epochs) if was != is_now]:
                (owner, was), (_, epoch) = known.owners[number], route.owners[number]
                owners = any_owner if epoch > was + 1 else () if owner is None else (owner,)
                if owners:
                    self._moves.append((now + KEEP_S, name, number, len(owners)))
                    earlier = self._keys.get((name, number))
                    self._keys[name, number] = owners if earlier is None else (*earlier, *owners)

    def of(self, endpoint: str, partition: int, now: float) -> tuple[ReplicaKey, ...]:
        """Earlier owners of the partition, oldest first."""
        if not self._moves:
            return ()
        self._forget(now)
        return self._keys.get((endpoint, partition), ())

    def _forget(self, now: float) -> None:
        while self._moves and (self._moves[0][0] <= now or len(self._moves) > MAX_MOVES):
            _, name, number, count = self._moves.popleft()
            left = self._keys[name, number][count:]
            if left:
                self._keys[name, number] = left
            else:
                del self._keys[name, number]
