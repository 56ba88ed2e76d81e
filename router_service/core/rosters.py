"""Rosters (which replicas could have received a call, by versions of routing tables) and connections of sessions.

Purpose: decides whether enough is known to prove that no replica has executed a call. Order follows from versions
alone, never from a clock. docs/guarantees.md has the reasoning.
Invariants: rosters are immutable. What is not known to be covered counts as not covered.
Owner: the routing table owns rosters. The edge makes a `SessionConnection`; `Acknowledgements` updates the roster that
its client has acknowledged.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

from slotmesh.calls.id_ranges import Range

ReplicaKey = tuple[str, str]
"""(replica_id, incarnation): one life of one replica."""


class RosterVersion(NamedTuple):
    """A version of the set of replicas that tables name."""

    generation: str
    revision: int
    term_id: str = ""
    """Of the table of which it is the roster; empty if unknown, as from clients that do not return it."""


class KnownTerm(NamedTuple):
    """A start of a controller from whose tables the present one follows."""

    term_id: str
    first_revision: int


class KnownDeparture(NamedTuple):
    """A replica that had ended when it was removed from the roster."""

    key: ReplicaKey
    version: RosterVersion
    """The first roster without it."""


class KnownGeneration(NamedTuple):
    """What is known of one generation."""

    generation: str
    revision: int
    """The newest roster of which all replicas are known."""
    departed_since: int
    """Departures at this revision and before may be forgotten."""


@dataclass(frozen=True, slots=True)
class TableRoster:
    """The roster of one table, and what follows from earlier ones."""

    version: RosterVersion
    departed: tuple[KnownDeparture, ...] = ()
    departed_since: int = 0
    """Of its own generation: departures at this revision and before may be forgotten."""
    covers: tuple[KnownGeneration, ...] = ()
    """Generations before its own, oldest first."""
    terms: tuple[KnownTerm, ...] = ()
    """Of its own generation, oldest first; earlier ones are forgotten. Empty if they are unknown."""

    def covers_all(self, versions: Iterable[RosterVersion]) -> bool:
        """Whether every replica of each of these rosters is in the table, or known to have departed."""
        known = {each.generation: each.revision for each in self._generations()}
        return all(
            version.revision <= known.get(version.generation, -1) and self._follows_from(version)
            for version in versions
        )

    def lost_since(self, first: RosterVersion | None, reported: Collection[ReplicaKey] = ()) -> str:
        """A departed replica, which cannot be queried, that could have executed a call first sent under this roster.

        Its id, or "some replica" where it is not known which ones have departed; empty where there is none. Without a
        roster all departures count. Those that have `reported` before they departed do not have the call.
        """
        generations = [*self._generations()]
        at = 0
        if first is not None:
            names = [each.generation for each in generations]
            if first.generation not in names:
                return "some replica"
            at = names.index(first.generation)
            if first.revision < generations[at].departed_since:
                return "some replica"
            generations = generations[at + 1 :]
        if any(each.departed_since for each in generations):
            return "some replica"
        later = {each.generation for each in generations}
        for key, version in self.departed:
            if key in reported:
                continue
            if version.generation in later or (first is not None and _follows(version, first)):
                return key[0]
        return ""

    def _follows_from(self, version: RosterVersion) -> bool:
        """False if the version is of a term that this table's controller never had: its state is an older copy."""
        if version.generation != self.version.generation or not version.term_id or not self.terms:
            return True
        ends = [*(each.first_revision for each in self.terms[1:]), inf]
        for term, end in zip(self.terms, ends, strict=True):
            if term.term_id == version.term_id:
                return version.revision < end
        return version.revision < self.terms[0].first_revision

    def _generations(self) -> Iterator[KnownGeneration]:
        """All of which anything is known, oldest first."""
        yield from self.covers
        yield KnownGeneration(self.version.generation, self.version.revision, self.departed_since)


NO_ROSTER = TableRoster(RosterVersion("", 0))


def _follows(version: RosterVersion, first: RosterVersion) -> bool:
    return version.generation == first.generation and version.revision > first.revision


class SessionConnection:
    """One connection of a session: what its client sent at the opening, and the newest roster it has acknowledged.

    Compared by identity.
    """

    __slots__ = ("acknowledged", "epoch", "is_suspended", "owner_mark", "rosters", "session_id", "unanswered")

    def __init__(
        self,
        session_id: str,
        epoch: int,
        unanswered: Sequence[Range] = (),
        rosters: Sequence[RosterVersion] = (),
        *,
        owner_mark: str = "",
    ) -> None:
        self.session_id = session_id
        """The key under which replicas know it: of the id that the client has chosen, and of the caller's name."""
        self.owner_mark = owner_mark
        """Ends the generation of each roster that is announced to the client; empty where callers have no identity."""
        self.epoch = epoch
        """1 at the first connection, one more at each further one."""
        self.unanswered = unanswered
        """The calls that earlier connections have sent, and that have no outcome yet."""
        self.rosters = rosters
        """Those that the client has acknowledged on earlier connections."""
        self.acknowledged = 0
        """The newest of this router's rosters that the client knows, by number."""
        self.is_suspended = True
        """Whether the client does not know all replicas that calls go to: its own calls wait."""


@dataclass(frozen=True, slots=True)
class FoundCalls:
    """The report of one replica on the calls that it was asked about."""

    running: Sequence[Range] = ()
    kept: Sequence[Range] = ()
    evicted: Sequence[Range] = ()
    """Executed, and the outcome no longer kept."""
    forgotten: bool = False
    """The replica has forgotten calls of the session: what it does not name may have run there."""
