"""Affinity keys: calls of one key go to one replica while it has room, and to the next ones on a ring where it has not.

Purpose: consistent hashing with bounded loads (Mirrokni, Thorup and Zadimoghaddam, 2016). Each replica has `PLACES`
places on a ring, which are hashes of its rank, or of its id if the table has no rank of it; a key belongs to the
replica at the first place from the key's own hash on. So a replica that joins or leaves moves only the keys that it
gets or had; one that returns with its id, or is started in place of another and gets its rank, has its keys again. A
replica takes calls of its keys up to its bound: `BOUND` times its share of the backend's load, or half of its
permits if that is more, and never more than its permits. Where it is at its bound, the next replica on the ring takes
them; where `MAX_TRIED` are, the balancer picks, which also uses the room behind running calls (`prefetch`).
Invariants: all routers with the same table have the same ring. A replica that takes no calls is passed over, as if it
were not on the ring. One without a link, outside the router's subset, is passed over until it is linked: `unlinked`
names it. The bound counts the calls that are about to be sent, so that a large run is cut into few slices.
A lookup costs O(log n); replicas that join or leave change the ring at the next lookup.
Owner: the scheduler.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from hashlib import blake2b
from itertools import islice, repeat
from struct import unpack
from typing import Final, Generic, TypeVar

from router_service.core.counters import BackendCounts
from router_service.core.limits.capacity import KnownReplica
from router_service.core.runs import RouterRun

CandidateT = TypeVar("CandidateT", bound=KnownReplica)

BOUND: Final = (5, 4)
"""The load that a replica may have for its keys, in shares of the backend's load: a fraction, so that it is exact."""
PLACES: Final = 128
"""Places of each replica on the ring: of ten replicas, the one with most keys has about 1.15 times the mean. Part of
the contract between routers, as the next."""
_SEED: Final = b"slotmesh.affin"
MAX_TRIED: Final = 16
"""Replicas that are tried for one run: a lookup costs no more, however many are full."""
MAX_CHANGED: Final = 100
"""Replicas that are added to a ring at once, and removed from it: a lookup takes some milliseconds at most."""
SECTOR_SHIFT: Final = 54
"""Places that share the bits above these are in one sector."""
SECTORS: Final = 1 << (64 - SECTOR_SHIFT)
MAX_PASSED: Final = 64
"""Replicas that are looked at for one run, those without a link included."""

MAX_FIRSTS: Final = 4_096
"""Keys whose first replica is kept."""
MAX_AROUND: Final = 256
"""Models whose first replicas are kept."""


def name_of(replica: KnownReplica) -> str:
    """What the places of a replica are hashes of. No id begins as names of ranks do."""
    return replica.replica_id if replica.rank is None else f"\0{replica.rank}"


def places_of(name: str) -> list[int]:
    """The places of a replica with this name on the ring, the same in every process."""
    data = name.encode()
    places: list[int] = []
    for number in range(PLACES // 8):
        digest = blake2b(data, digest_size=64, salt=number.to_bytes(2, "big"), person=_SEED).digest()
        places += unpack(">8Q", digest)
    return places


class Ring(Generic[CandidateT]):
    """The replicas of one backend by their places, drained and unlisted ones left out."""

    def __init__(self) -> None:
        self._members: dict[str, list[CandidateT]] = {}
        """By name: several while an incarnation replaces another, or after ranks were given twice; ordered by id."""
        self._names: dict[CandidateT, str] = {}
        """Under which each is one of `_members`: ranks may change."""
        self._on_ring: dict[str, list[int]] = {}
        """The names that `_sectors` has, with their places. Follows `_members` at the next lookups."""
        self._has_changed = False
        """They may differ."""
        self._sectors: list[list[int]] = [[] for _ in range(SECTORS)]
        """All places by their highest bits, ascending: one that is added or removed moves only those of its sector."""
        self._name_at: dict[int, str] = {}

    def put(self, replica: CandidateT, *, is_member: bool) -> None:
        """Adds or removes a replica, or moves one whose rank has changed."""
        before, name = self._names.get(replica), name_of(replica) if is_member else None
        if name == before:
            return
        self._has_changed = True
        if before is not None:
            del self._names[replica]
            self._members[before].remove(replica)
            if not self._members[before]:
                del self._members[before]
        if name is not None:
            self._names[replica] = name
            insort(self._members.setdefault(name, []), replica, key=lambda each: each.key)

    def follow(self, place: int) -> Iterator[CandidateT]:
        """The replicas from this place on, each one once, in the order of the ring."""
        if self._has_changed:
            self._update()
        name_at, seen = self._name_at, set[str]()
        number = place >> SECTOR_SHIFT
        at = bisect_left(self._sectors[number], place)
        while len(seen) < len(self._on_ring):
            for each in islice(self._sectors[number], at, None):
                if (name := name_at[each]) not in seen:
                    seen.add(name)
                    yield from self._members.get(name, ())
            number, at = (number + 1) % SECTORS, 0

    def _update(self) -> None:
        """Adds and removes the places of replicas, of a limited number at once."""
        name_at, sectors = self._name_at, self._sectors
        gone = [name for name in self._on_ring if name not in self._members]
        new = [name for name in self._members if name not in self._on_ring]
        self._has_changed = len(gone) > MAX_CHANGED or len(new) > MAX_CHANGED
        # Two of some thousand replicas do not share one of 2^64 places.
        for name in gone[:MAX_CHANGED]:
            for place in self._on_ring.pop(name):
                del name_at[place]
                sector = sectors[place >> SECTOR_SHIFT]
                del sector[bisect_left(sector, place)]
        for name in new[:MAX_CHANGED]:
            places = self._on_ring[name] = places_of(name)
            name_at.update(zip(places, repeat(name)))
            for place in places:
                insort(sectors[place >> SECTOR_SHIFT], place)


def takes(replica: KnownReplica) -> bool:
    """Whether it takes calls; unlike `taking`, outside this router's subset, too."""
    return replica.linked and not (replica.draining or replica.is_joining or replica.is_passed_over)


class BoundedRing(Ring[CandidateT]):
    """A ring whose replicas have bounds of their loads."""

    def __init__(self) -> None:
        super().__init__()
        self._loads: dict[CandidateT, tuple[int, int, int]] = {}
        """Load, permits and room of each replica that takes calls, as of its last change."""
        self._load = 0
        self._permits = 0
        self.room_of_all = 0
        """The sums of `_loads`. The room includes that behind running calls."""
        self._firsts: dict[int, CandidateT | None] = {}
        """What `first` has returned since a replica was added or removed, or began or ceased to take calls."""
        self._around: dict[int, list[CandidateT]] = {}
        """The same of `around`."""
        self.unlinked: CandidateT | None = None
        """The first replica that lookups passed over because this router has no link to it, until it is set to None."""

    def changed(self, replica: CandidateT) -> None:
        """See `Preference.changed`."""
        self.put(replica, is_member=replica.listed and not replica.draining)
        if self._has_changed or takes(replica) is not (replica in self._loads):
            self._firsts.clear()
            self._around.clear()
        load, permits, room = self._loads.pop(replica, (0, 0, 0))
        self._load -= load
        self._permits -= permits
        self.room_of_all -= room
        if takes(replica):
            capacity = replica.capacity
            load, permits = replica.own + capacity.others, capacity.max_ongoing
            room = max(0, permits + capacity.prefetch - load)
            self._loads[replica] = load, permits, room
            self._load += load
            self._permits += permits
            self.room_of_all += room

    def with_room(self, place: int, count: int) -> Iterator[tuple[CandidateT, int]]:
        """The replicas from this place on that are below their bounds, and how many of `count` calls each takes."""
        tried = 0
        for replica in islice(self.follow(place), MAX_PASSED):
            if takes(replica):
                if (room := self.room(replica, count)) > 0:
                    yield replica, room
                tried += 1
                if tried == MAX_TRIED:
                    return
            elif not (replica.is_member or replica.linked) and self.unlinked is None:
                self.unlinked = replica

    def first(self, place: int) -> CandidateT | None:
        """The first replica from this place on that takes calls; None if none of `MAX_PASSED` does."""
        if place in self._firsts:
            return self._firsts[place]
        found = next(filter(takes, islice(self.follow(place), MAX_PASSED)), None)
        if not self._has_changed:
            if len(self._firsts) >= MAX_FIRSTS:
                self._firsts.clear()
            self._firsts[place] = found
        return found

    def around(self, place: int) -> list[CandidateT]:
        """Of the first `MAX_TRIED` replicas from this place on, those that take calls."""
        if (known := self._around.get(place)) is not None:
            return known
        found = [each for each in islice(self.follow(place), MAX_TRIED) if takes(each)]
        if not self._has_changed:
            if len(self._around) >= MAX_AROUND:
                self._around.clear()
            self._around[place] = found
        return found

    @property
    def idle(self) -> int:
        """Permits that no call uses."""
        return max(0, self._permits - self._load)

    def room(self, replica: CandidateT, count: int) -> int:
        """Calls that the replica takes until it is at its bound, which `count` more calls of the backend raise."""
        capacity = replica.capacity
        permits = capacity.max_ongoing
        times, parts = BOUND
        share = -(-times * (self._load + count) * permits // (parts * self._permits))
        return min(permits, max(share, (permits + 1) // 2)) - replica.own - capacity.others


class AffinityKeys(Generic[CandidateT]):
    """The affinity keys of one backend's calls."""

    def __init__(self, counts: BackendCounts, ring: BoundedRing[CandidateT]) -> None:
        """`ring`: of the backend's replicas, to be read."""
        self._counts = counts
        self._ring = ring

    def changed(self, replica: CandidateT) -> None:
        """See `Preference.changed`. The ring has followed."""

    def pick(self, run: RouterRun, count: int) -> tuple[CandidateT, int] | None:
        """See `Preference.pick`."""
        if not run.options.affinity_key:
            return None
        return next(self._ring.with_room(run.options.affinity_place, count), None)

    def suits(self, run: RouterRun, replica: CandidateT) -> bool | None:
        """See `Preference.suits`."""
        return self._ring.first(run.options.affinity_place) is replica if run.options.affinity_key else None

    def sent(self, run: RouterRun, count: int, replica: CandidateT) -> None:
        """See `Preference.sent`."""
        if not run.options.affinity_key:
            return
        if replica is self._ring.first(run.options.affinity_place):
            self._counts.preferred += count
        else:
            self._counts.spilled += count
