"""Rows of the desired state, which every lasting store keeps: from a state, from what differs between two, and back.

Invariants: only what changed is written; every row that is read has the checksum that it was written with; rows that
contradict each other are damage, and no state is made of them. A row is a JSON document with a checksum.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from controller_service.core.desired.state import Desired
from controller_service.core.roster import NO_ROSTER, IncarnationRoster, ListedIncarnation
from controller_service.store.documents import MEMBER, ROSTER, SECTIONS, RowKind
from controller_service.store.forms import BadDocument, within


def checksum_of(*parts: object) -> int:
    """Of a row: a page that was written badly is seen by it, as SQLite's own files have no checksums."""
    return zlib.crc32("\0".join(map(str, parts)).encode())


ValueT = TypeVar("ValueT")


class DamagedRows(Exception):
    """The rows are not what was written; the message names them."""


@dataclass(frozen=True, slots=True)
class Head:
    """What a state has once."""

    generation: str
    revision: int
    configured_at: int
    epoch_floor: int
    term: int
    """Counts the starts of controllers that may write."""

    @property
    def checksum(self) -> int:
        return checksum_of(self.generation, self.revision, self.configured_at, self.epoch_floor, self.term)


Row: TypeAlias = tuple[str, str, str, int]
"""Kind, name, document, checksum."""


def read_state(head: Head, all_rows: Iterable[Row]) -> Desired:
    """What the rows have. Raises DamagedRows, and BadDocument for what a newer version wrote."""
    rows: dict[RowKind, dict[str, Any]] = {kind: {} for kind in RowKind}
    known: dict[str, Any] = {}
    """By text: thousands of endpoints may have the same owners of partitions."""
    for kind, name, text, checksum in all_rows:
        if checksum != checksum_of(kind, name, text):
            raise DamagedRows(f"the checksum of {kind} {name} is wrong")
        if kind not in rows:
            raise BadDocument(f"this version of slotmesh knows no rows of kind {kind!r}")
        if text not in known:
            known[text] = json.loads(text)
        rows[RowKind(kind)][name] = known[text]
    roster = NO_ROSTER
    if (document := rows[RowKind.ROSTER].get("")) is not None:
        members = (within("roster", MEMBER.read, it) for it in rows[RowKind.MEMBER].values())
        in_order = tuple(sorted(members, key=lambda it: it.owner))
        roster = within("roster", ROSTER.read, document, members=in_order)
    desired = Desired(
        revision=head.revision,
        configured_at=head.configured_at,
        epoch_floor=head.epoch_floor,
        roster=roster,
        **{it.attribute: it.read(rows[kind]) for kind, it in SECTIONS.items()},
    )
    _require_consistent(desired)
    return desired


def changed_rows(before: Desired, after: Desired) -> Iterator[tuple[str, str, dict[str, Any] | None]]:
    """Rows that differ: kind, name, and the document; None if the row goes."""
    for kind, section in SECTIONS.items():
        if getattr(before, section.attribute) is not getattr(after, section.attribute):
            write = _once(section.stored.write)  # values of several names may be one object
            yield from _differing(kind, section.values(before), section.values(after), write)
    if before.roster is not after.roster:
        yield RowKind.ROSTER, "", ROSTER.write(after.roster)
        if before.roster.members is not after.roster.members:
            yield from _changed_members(before.roster, after.roster)


def _changed_members(
    before: IncarnationRoster, after: IncarnationRoster
) -> Iterator[tuple[str, str, dict[str, Any] | None]]:
    """There may be thousands, most of them the same objects in both rosters, or equal ones."""
    olds, news = ({id(it): it for it in roster.members} for roster in (before, after))
    old = {_member_name(it): it for key, it in olds.items() if key not in news}
    new = {_member_name(it): it for key, it in news.items() if key not in olds}
    for name, member in new.items():
        if old.get(name) != member:
            yield RowKind.MEMBER, name, MEMBER.write(member)
    for name in old:
        if name not in new:
            yield RowKind.MEMBER, name, None


def _member_name(member: ListedIncarnation) -> str:
    return f"{member.owner.replica_id}/{member.owner.incarnation}"


def _differing(
    kind: RowKind,
    before: Mapping[str, ValueT],
    after: Mapping[str, ValueT],
    document_of: Callable[[ValueT], dict[str, Any]],
) -> Iterator[tuple[str, str, dict[str, Any] | None]]:
    for name, value in after.items():
        if before.get(name) is not value:
            yield kind, name, document_of(value)
    for name in before:
        if name not in after:
            yield kind, name, None


def _once(document_of: Callable[[ValueT], dict[str, Any]]) -> Callable[[ValueT], dict[str, Any]]:
    """Each object's document is made once."""
    known: dict[int, dict[str, Any]] = {}

    def once(value: ValueT) -> dict[str, Any]:
        if (document := known.get(id(value))) is None:
            document = known[id(value)] = document_of(value)
        return document

    return once


def _require_consistent(desired: Desired) -> None:
    """What holds for every state that was committed."""
    if not 0 <= desired.configured_at <= desired.revision:
        raise DamagedRows(f"it is configured at revision {desired.configured_at} of {desired.revision}")
    for name, endpoint in desired.endpoints.items():
        policy = endpoint.traffic
        for backend in () if policy is None else (*policy.weights, *policy.shadows):
            if backend not in desired.backends:
                raise DamagedRows(f"endpoint {name} names backend {backend}, which is not there")
    if lone := sorted(desired.ownership.keys() - desired.endpoints.keys()):
        raise DamagedRows(f"partitions of endpoints that are not there have owners: {', '.join(lone)}")
    if lone := sorted(desired.rollouts.keys() - desired.backends.keys()):
        raise DamagedRows(f"there are rollouts of backends that are not there: {', '.join(lone)}")
    if lone := sorted(desired.shifts.keys() - desired.endpoints.keys()):
        raise DamagedRows(f"there are shifts of endpoints that are not there: {', '.join(lone)}")
    for earlier, later in zip(desired.history, desired.history[1:], strict=False):
        if later.base != earlier.revision:
            raise DamagedRows(f"the history has nothing between revisions {earlier.revision} and {later.base}")
