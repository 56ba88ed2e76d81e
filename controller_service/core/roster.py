"""The roster: the incarnations that routing tables name, which could have got calls, as a value with a version.

Purpose: the part of a table on replicas that are there, on those that have departed, and on earlier generations.
docs/guarantees.md has what routers conclude from it.
Invariants: the revision is that of the first table with this set of incarnations; an incarnation that leaves the set is
in `departed`, or left at `departed_since` or before it; `departed` is bounded, and what is dropped from it raises
`departed_since`, which is always sound: of older calls nothing is concluded. A departure has the version of an earlier
generation only if that generation is the newest of `covers`, or one table has the order of all of them; for all others
it counts as of now, so that no call passes for later than a departure because two generations were ordered wrongly.
Lineage: a state file that was put back, or copied, counts revisions again that there have been. Each start of a leader
begins a term with an id of its own, which the store keeps with the term's first revision, and which tables carry. A
table of another generation proves nothing; one of a term that a store does not remember any more is newer only if its
revision is: unknown is not no. A table stays newer, since terms of the past have ended.
Owner: the store, by `Desired`; the reconcile loop plans it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from types import MappingProxyType
from typing import Final

from controller_service.core.partition_owners import Incarnation, PartitionOwnership

MAX_DEPARTED: Final = 512
"""Departures that are listed, the newest."""
KEEP_S: Final = 600.0
"""Departures are listed for this long: several times longer than any router resolves what became of a call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedIncarnation:
    """An incarnation that tables name, with what another controller needs if it has no state."""

    owner: Incarnation
    backend: str
    address: str
    max_ongoing: int
    draining: bool = False
    process: str = ""
    """Identity of its process; empty where its machine has none."""
    template: str = ""
    """What its launcher started its process with; empty if it was started elsewhere, or a router sent the table."""
    fixed: str = ""
    """The part of the template that it cannot take on without a restart."""
    is_unresolved: bool = False
    """Another incarnation has its id now, and this one is not proven to have ended; False in routers' tables."""
    fenced_after_s: float = 0.0
    """Its process ends this long after the newest report that was acknowledged; 0 if it does not fence itself, and in
    tables that routers send."""
    pod_uid: str = ""
    """Of the Kubernetes pod that it runs in; empty where that is unknown, and in tables that routers send."""
    devices: tuple[str, ...] = ()
    """What it holds; empty in tables that routers send."""
    rank: int | None = None
    """Among the live replicas of its backend; None if unknown, and in the roster: it is not stored."""
    zone: str = ""
    """Where it runs; empty where that is unknown, and in the roster: it is not stored."""
    suspect: bool = False
    """It is silent: unkeyed calls go to others, as long as there are any. False in the roster: it is not stored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DepartedIncarnation:
    """An incarnation that had ended before tables stopped naming it."""

    owner: Incarnation
    generation: str
    revision: int
    """The first roster without it, in `generation`."""
    left_at: float
    """When this controller learnt of it, seconds since 1970. Nothing but the bound depends on it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoveredTables:
    """An earlier generation, up to the newest table of it that a router has sent."""

    generation: str
    revision: int
    """The newest roster of it that was received."""
    departed_since: int = 0
    """Departures at this revision and at older ones may be missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IncarnationRoster:
    """The incarnations that tables name, and those that they named before."""

    revision: int = 0
    members: tuple[ListedIncarnation, ...] = ()
    departed: tuple[DepartedIncarnation, ...] = ()
    """Oldest first; an incarnation once."""
    departed_since: int = 0
    """Departures of this generation at this revision and at older ones may be missing."""
    covers: tuple[CoveredTables, ...] = ()
    """Oldest first."""

    def owners(self) -> frozenset[Incarnation]:
        """The incarnations."""
        return frozenset(member.owner for member in self.members)

    def has_departed(self, owner: Incarnation) -> bool:
        """Whether an incarnation is listed as departed."""
        return any(it.owner == owner for it in self.departed)

    def covered_revision(self, generation: str) -> int:
        """Up to which roster it covers an earlier generation; -1 where not at all."""
        return next((it.revision for it in self.covers if it.generation == generation), -1)

    def listing(
        self, members: Iterable[ListedIncarnation], *, generation: str, revision: int, now: float
    ) -> IncarnationRoster:
        """With these members from `revision` on; the very same value where the incarnations are the same.

        `now` is in seconds since 1970. Those that left must have ended.
        """
        listed = tuple(sorted(members, key=attrgetter("owner")))
        gone = self.owners().difference(member.owner for member in listed)
        if not gone and len(listed) == len(self.members):
            return self
        left = [
            DepartedIncarnation(owner=it, generation=generation, revision=revision, left_at=now) for it in sorted(gone)
        ]
        changed = replace(self, revision=revision, members=listed)
        return changed._with_departures(left, generation=generation, now=now)

    def learning(
        self,
        earlier: IncarnationRoster,
        earlier_generation: str,
        *,
        ended: Collection[Incarnation] = (),
        generation: str,
        revision: int,
        now: float,
    ) -> IncarnationRoster:
        """Adds the departures of a roster of another generation, and the generations before it.

        `ended` are members of it that are proven to have ended, and `revision` is that of the first table that lists
        them as departed. The members stay as they are: `listing` has them.
        """
        chain = [
            *(it for it in earlier.covers if it.generation != generation),
            CoveredTables(
                generation=earlier_generation, revision=earlier.revision, departed_since=earlier.departed_since
            ),
        ]
        newest_of = {it.generation: it for it in chain}
        covered = {it.generation for it in self.covers}
        covers = (
            *(_newer(it, newest_of.get(it.generation, it)) for it in self.covers),
            *(it for it in chain if it.generation not in covered),
        )
        # One table's word on the order of generations can be relied on, that of several put together cannot.
        trusted = {it.generation for it in covers} if not self.covers else {covers[-1].generation}

        def as_of_now(departure: DepartedIncarnation) -> DepartedIncarnation:
            return replace(departure, generation=generation, revision=revision)

        is_chain_longer = len(covers) > len(self.covers) > 0
        before = (it if it.generation == generation or not is_chain_longer else as_of_now(it) for it in self.departed)
        changed = replace(self, departed=tuple(before), covers=covers)
        known = {(it.owner, it.generation, it.revision) for it in self.departed}
        news = (it for it in earlier.departed if (it.owner, it.generation, it.revision) not in known)
        added = [it if it.generation in trusted else as_of_now(it) for it in news]
        added += [DepartedIncarnation(owner=it, generation=generation, revision=revision, left_at=now) for it in ended]
        return changed._with_departures(added, generation=generation, now=now)

    def _with_departures(
        self, departures: Iterable[DepartedIncarnation], *, generation: str, now: float
    ) -> IncarnationRoster:
        """Of two departures of one incarnation the later one counts."""
        order = {it.generation: place for place, it in enumerate(self.covers)}
        order[generation] = len(order)

        def place(it: DepartedIncarnation) -> tuple[int, int, Incarnation]:
            return order.get(it.generation, -1), it.revision, it.owner

        latest: dict[Incarnation, DepartedIncarnation] = {it.owner: it for it in self.departed}
        for departure in departures:
            known = latest.get(departure.owner)
            if known is None or place(known) < place(departure):
                latest[departure.owner] = departure
        ordered = sorted(latest.values(), key=place)
        kept = [it for it in ordered if it.left_at > now - KEEP_S][-MAX_DEPARTED:]
        listed = {it.owner for it in kept}
        dropped = [it for it in ordered if it.owner not in listed]
        return replace(
            self,
            departed=tuple(kept),
            departed_since=_since(self.departed_since, generation, dropped),
            covers=tuple(
                replace(it, departed_since=_since(it.departed_since, it.generation, dropped)) for it in self.covers
            ),
        )


NO_ROSTER: Final = IncarnationRoster()
"""The roster of a controller that has listed no replica yet."""


def _newer(one: CoveredTables, other: CoveredTables) -> CoveredTables:
    """The one with the newer roster. Of one roster the more complete list."""
    if one.revision == other.revision:
        return replace(one, departed_since=min(one.departed_since, other.departed_since))
    return max(one, other, key=lambda it: it.revision)


def _since(before: int, generation: str, dropped: Iterable[DepartedIncarnation]) -> int:
    return max([before, *(it.revision for it in dropped if it.generation == generation)])


TERMS_KEPT: Final = 256
"""Terms that a store remembers, the newest. Tables of older ones count by their revision."""


HEARD_WITHIN_S: Final = 5.0
"""How long a controller whose state file lists replicas waits after its start for routers, before it decides anything.
Members that lost their controller try again each second."""


@dataclass(frozen=True, slots=True)
class LeaderTerm:
    """A start of a controller that may write the store."""

    term_id: str
    """Random."""
    first_revision: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldTable:
    """The version of the newest table, or of the configuration, that a member holds."""

    generation: str
    revision: int
    """0: it holds none, or does not report it."""
    term_id: str = ""
    """Of the term in which it was announced; empty without a table."""
    is_of_later_generation: bool = False
    """Its controllers have learnt from tables of the generation of the controller that looks at it."""


class ReportedRouters:
    """Which routers have reported, since a start of the controller, the table that they hold.

    Each table names the routers of its mesh, so one router that has a table is enough to know which are missing.
    """

    def __init__(self) -> None:
        self._attached: set[str] = set()
        self._named: set[str] = set()

    @property
    def are_all(self) -> bool:
        """Whether a router has reported a table, and so have all routers that reported tables name."""
        return bool(self._named) and self._named <= self._attached

    def reported(self, address: str, named: Collection[str], *, has_table: bool) -> None:
        """A router at this address has attached. `named`: the routers in its table."""
        self._attached.add(address)
        if has_table:
            self._named.update(named or (address,))


def with_term(terms: Sequence[LeaderTerm], term: LeaderTerm) -> tuple[LeaderTerm, ...]:
    """With one that begins."""
    return (*terms, term)[-TERMS_KEPT:]


def is_newer(
    held: HeldTable,
    *,
    generation: str,
    revision: int,
    terms: Sequence[LeaderTerm],
    roster: IncarnationRoster = NO_ROSTER,
) -> bool:
    """Whether a member's table was announced by a newer state than that of this store, which is at `revision`.

    A store whose `roster` covers a later generation has learnt from it, and follows it.
    """
    if held.is_of_later_generation:
        return roster.covered_revision(held.generation) < 0
    if held.generation != generation or not held.revision:
        return False
    for number, term in enumerate(terms):
        if held.term_id == term.term_id:
            is_last = number + 1 == len(terms)
            return held.revision > (revision if is_last else terms[number + 1].first_revision - 1)
    if terms and held.revision >= terms[0].first_revision:
        return True  # a term that this store never had
    return held.revision > revision


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierTable:
    """The table of an earlier generation that was in force at a router when it attached: what its controller knew."""

    generation: str
    roster: IncarnationRoster
    ownership: Mapping[str, PartitionOwnership] = field(default_factory=lambda: MappingProxyType({}))
    """By endpoint."""
    router_addresses: frozenset[str] = frozenset()
    """Where the routers of its generation serve: any of them may send a newer table."""

    @property
    def newest_epoch(self) -> int:
        """0 where no partition has an owner."""
        owned = {id(it): it for it in self.ownership.values()}.values()
        return max((max(it.epochs) for it in owned if it.epochs), default=0)

    def chain(self) -> tuple[CoveredTables, ...]:
        """The generations that it covers, its own last."""
        own = CoveredTables(
            generation=self.generation,
            revision=self.roster.revision,
            departed_since=self.roster.departed_since,
        )
        return (*self.roster.covers, own)

    def covers(self, generation: str, revision: int) -> bool:
        """Whether all members of that roster are in it, or have ended."""
        return any(it.generation == generation and it.revision >= revision for it in self.chain())
