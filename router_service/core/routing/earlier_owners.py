"""Earlier owners of partitions: where calls with a request id may have been executed before their partition moved.

Purpose: a replica remembers such a call for a minute after its end. If its partition has moved since, the router looks
the call up at each earlier owner first. One that does not remember the call refuses it, as it owns the partition no
longer, and will never execute it.
Invariants: a move is remembered for as long as an outcome may be kept, from when the table showed it, which is later
than the last end of a call at the earlier owner. An epoch grows by one with each owner: if it has grown by more, this
router has missed owners, and the result is marked as incomplete. Moves before this router's first table are not known.
A table costs one comparison for each endpoint; for each endpoint at most one list of owners is kept for each second of
the last minute.
Owner: the topology.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Final

from router_service.core.rosters import ReplicaKey
from router_service.core.routing_table import EndpointRoute, PartitionOwners
from slotmesh.calls.request_ids import KEEP_S

SPACING_S: Final = 1.0
"""Of the owners that an endpoint had within this time, only the first are kept."""


@dataclass(slots=True, eq=False)
class _Former:
    """The owners of one endpoint's partitions at one time."""

    owners: PartitionOwners
    since: float
    """When other owners followed, monotonic seconds."""
    until: float
    """The same of the last ones that were not kept."""
    is_followed_by_gap: bool = False
    """The endpoint was removed while it had owners that were not kept."""


@dataclass(slots=True)
class EarlierOwnersOfPartition:
    """Earlier owners of one partition."""

    epochs: dict[ReplicaKey, int] = field(default_factory=dict)
    """By owner, the newest epoch at which it was one; newest first."""
    is_complete: bool = True
    """False: other replicas may have owned the partition, too."""


class EarlierOwners:
    """Owners of the last minute."""

    __slots__ = ("_current", "_expires", "_formers")

    def __init__(self) -> None:
        self._formers: dict[str, deque[_Former]] = {}
        """By endpoint, oldest first. No endpoint has an empty entry."""
        self._current: Mapping[str, EndpointRoute] = {}
        self._expires = inf
        """When the oldest may be forgotten, monotonic seconds."""

    def changed(self, before: Mapping[str, EndpointRoute], after: Mapping[str, EndpointRoute], now: float) -> None:
        """Keeps the owners that differ in the next table."""
        self._forget(now)
        self._current = after
        for name, route in before.items():
            following = after.get(name)
            if route.owners and (following is None or following.owners is not route.owners):
                self._keep(name, route.owners, now, is_removed=following is None)

    def of(self, endpoint: str, partition: int, now: float) -> EarlierOwnersOfPartition:
        """Returns the earlier owners of the partition."""
        earlier = EarlierOwnersOfPartition()
        if not self._formers:
            return earlier
        self._forget(now)
        route = self._current.get(endpoint)
        current = route.owners[partition] if route is not None and route.owners else (None, 0)
        newer = current[1]
        for former in reversed(self._formers.get(endpoint, ())):
            owner, epoch = former.owners[partition]
            if former.is_followed_by_gap or epoch < newer - 1:
                earlier.is_complete = False
            if owner is not None and (owner, epoch) != current:
                earlier.epochs.setdefault(owner, epoch)
            newer = epoch
        return earlier

    def _keep(self, name: str, owners: PartitionOwners, now: float, *, is_removed: bool) -> None:
        formers = self._formers.setdefault(name, deque())
        if formers and now - formers[-1].since < SPACING_S:
            formers[-1].until = now
            formers[-1].is_followed_by_gap |= is_removed
        else:
            formers.append(_Former(owners, now, now))
            self._expires = min(self._expires, now + KEEP_S)

    def _forget(self, now: float) -> None:
        if now < self._expires:
            return
        for name, formers in list(self._formers.items()):
            while formers and formers[0].until + KEEP_S <= now:
                formers.popleft()
            if not formers:
                del self._formers[name]
        self._expires = min((formers[0].until + KEEP_S for formers in self._formers.values()), default=inf)
