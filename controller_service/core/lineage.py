"""Whether a table that a member holds follows from this store, or the store is an older copy of its own past.

Purpose: a state file that was put back, or copied, counts revisions again that there have been. Each start of a leader
begins a term with an id of its own, which the store keeps with the term's first revision, and which tables carry. So a
table is distinguished from one of another copy of the store, however many revisions that copy has counted since.
Invariants: a table of another generation proves nothing here; one without a term's id, of older members and
controllers, is newer only if its revision is: unknown is not no. A table stays newer, since terms of the past have
ended.
Owner: `shell.leadership.NewerMembers`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from controller_service.core.partitions import PartitionOwnership
from controller_service.core.roster import CoveredTables, IncarnationRoster

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
    """Of the term in which it was announced; empty: of an older version."""


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


def is_newer(held: HeldTable, *, generation: str, revision: int, terms: Sequence[LeaderTerm]) -> bool:
    """Whether a member's table was announced by a newer state than that of this store, which is at `revision`."""
    if held.generation != generation or not held.revision:
        return False
    for number, term in enumerate(terms):
        if held.term_id == term.term_id:
            is_last = number + 1 == len(terms)
            return held.revision > (revision if is_last else terms[number + 1].first_revision - 1)
    if held.term_id and terms and held.revision >= terms[0].first_revision:
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
