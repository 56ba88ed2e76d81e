"""Preferences choose the replica of calls that one replica suits best, ahead of the backend's balancer: one per file.

The first one that has a replica for a call decides, and the balancer if none has. Only runs whose options state a
preference are looked at (`RouterCallOptions.prefers`), calls and reservations alike, and unkeyed calls of backends
whose prompts routers read (`Prompts`).
Invariants: a preference is pure and synchronous; its state is bounded, and follows `changed`. It never picks a replica
that is full while the balancer has one with room.
Owner: the scheduler; a backend makes its preferences at the first run that states one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, Protocol, TypeVar

from router_service.core.counters import BackendCounts
from router_service.core.limits.capacity import KnownReplica
from router_service.core.preferences.affinity import AffinityKeys, BoundedRing
from router_service.core.preferences.delays import Delays
from router_service.core.preferences.models import ModelIds
from router_service.core.preferences.prefixes import PrefixAffinity, Prompts
from router_service.core.runs import RouterRun

CandidateT = TypeVar("CandidateT", bound=KnownReplica)


class Preference(Protocol[CandidateT]):
    """Prefers one of a backend's replicas for some calls; changes none."""

    def changed(self, replica: CandidateT) -> None:
        """The replica's load, capacity or link changed; it may be new, linked or not, or have left."""

    def pick(self, run: RouterRun, count: int) -> tuple[CandidateT, int] | None:
        """The replica for the next of `count` calls of the run, and how many of them it takes at most, at least 1.

        None: the run states no preference of this kind, or no preferred replica has room.
        """

    def suits(self, run: RouterRun, replica: CandidateT) -> bool | None:
        """Whether the next call of the run would go to this replica if all had room; None if that does not matter.

        Costs little: it is called for several runs that wait, whenever a replica gets room.
        """

    def sent(self, run: RouterRun, count: int, replica: CandidateT) -> None:
        """`count` calls of a run that states a preference, of any kind, were sent to this replica."""


class Preferences(Generic[CandidateT]):
    """All preferences of one backend."""

    def __init__(self, replicas: Iterable[CandidateT], counts: BackendCounts, prompts: Prompts, delays: Delays) -> None:
        self.prefixes: PrefixAffinity[CandidateT] = PrefixAffinity(prompts, counts)
        self._ring: BoundedRing[CandidateT] = BoundedRing()
        self._delays = delays
        delays.ring = self._ring
        models: ModelIds[CandidateT] = ModelIds(self._ring, delays)
        keys: AffinityKeys[CandidateT] = AffinityKeys(counts, self._ring)
        self._ordered: tuple[Preference[CandidateT], ...] = (models, self.prefixes, keys)
        """The most important one first: model, prefix, affinity key."""
        for replica in replicas:
            self.changed(replica)

    @property
    def unlinked(self) -> CandidateT | None:
        """A replica that the newest pick would have preferred to the one it picked, had this router a link to it."""
        return self._ring.unlinked

    def changed(self, replica: CandidateT) -> None:
        """See `Preference.changed`."""
        self._ring.changed(replica)
        for each in self._ordered:
            each.changed(replica)

    def pick(self, run: RouterRun, count: int) -> tuple[CandidateT, int] | None:
        """See `Preference.pick`. None: the balancer picks, unless the run is delayed."""
        self._ring.unlinked, delays = None, self._delays
        delays.is_delayed = False
        for each in self._ordered:
            if (picked := each.pick(run, count)) is not None or delays.is_delayed:
                return picked
        return None

    def suits(self, run: RouterRun, replica: CandidateT) -> bool:
        """Whether no other replica suits the next call of the run better. See `Preference.suits`."""
        for each in self._ordered:
            if (suits := each.suits(run, replica)) is not None:
                return suits
        return True

    def sent(self, run: RouterRun, count: int, replica: CandidateT) -> None:
        """See `Preference.sent`."""
        for each in self._ordered:
            each.sent(run, count, replica)
