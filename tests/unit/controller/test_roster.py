"""Rosters as versions: what departed, since when that is known, and what is covered of earlier generations."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from controller_service.core.partition_owners import Incarnation
from controller_service.core.roster import (
    KEEP_S,
    MAX_DEPARTED,
    NO_ROSTER,
    CoveredTables,
    DepartedIncarnation,
    IncarnationRoster,
    ListedIncarnation,
)
from tests.support.examples import examples


def member(name: str, *, address: str = "h:1") -> ListedIncarnation:
    return ListedIncarnation(owner=Incarnation(name, "i"), backend="v1", address=address, max_ongoing=1)


def listing(roster: IncarnationRoster, names: str, revision: int, *, now: float = 0.0) -> IncarnationRoster:
    return roster.listing(map(member, names), generation="g", revision=revision, now=now)


def departures(roster: IncarnationRoster) -> list[tuple[str, str, int]]:
    return [(it.owner.replica_id, it.generation, it.revision) for it in roster.departed]


def test_the_revision_is_that_of_the_last_change_of_who_is_listed() -> None:
    roster = listing(NO_ROSTER, "ba", 3)
    assert roster.revision == 3
    assert [it.owner.replica_id for it in roster.members] == ["a", "b"]
    again = roster.listing([member("a", address="h:2"), member("b")], generation="g", revision=4, now=1.0)
    assert again is roster, "the same incarnations"
    less = listing(roster, "b", 5)
    assert (less.revision, departures(less)) == (5, [("a", "g", 5)])
    other_life = ListedIncarnation(owner=Incarnation("b", "j"), backend="v1", address="h:1", max_ongoing=1)
    replaced = less.listing([other_life], generation="g", revision=6, now=1.0)
    assert [(it.owner, it.revision) for it in replaced.departed] == [
        (Incarnation("a", "i"), 5),
        (Incarnation("b", "i"), 6),
    ]


def test_departures_are_bounded_by_time_and_what_was_dropped_is_said() -> None:
    roster = listing(listing(NO_ROSTER, "abc", 1), "bc", 2, now=100.0)
    kept = listing(roster, "c", 3, now=99.0 + KEEP_S)
    assert (departures(kept), kept.departed_since) == ([("a", "g", 2), ("b", "g", 3)], 0)
    dropped = listing(roster, "c", 3, now=100.0 + KEEP_S)
    assert (departures(dropped), dropped.departed_since) == ([("b", "g", 3)], 2)


@settings(deadline=None, max_examples=examples(30))
@given(st.lists(st.integers(1, 200), min_size=1, max_size=8))
def test_departures_are_bounded_in_number_and_none_after_departed_since_is_missing(counts: list[int]) -> None:
    roster, revision, left = NO_ROSTER, 0, dict[str, int]()
    for at, count in enumerate(counts):
        names = [f"r{at}-{number}" for number in range(count)]
        for members in (names, []):
            revision += 1
            left.update(dict.fromkeys((it.owner.replica_id for it in roster.members), revision))
            roster = roster.listing(map(member, members), generation="g", revision=revision, now=0.0)
    assert len(roster.departed) == min(MAX_DEPARTED, len(left))
    listed = {it.owner.replica_id: it.revision for it in roster.departed}
    assert listed.items() <= left.items()
    assert all(name in listed for name, revision in left.items() if revision > roster.departed_since)


def brought(
    revision: int, *departed: tuple[str, str, int], since: int = 0, covers: tuple[CoveredTables, ...] = ()
) -> IncarnationRoster:
    return IncarnationRoster(
        revision=revision,
        departed=tuple(
            DepartedIncarnation(owner=Incarnation(name, "i"), generation=generation, revision=at, left_at=0.0)
            for name, generation, at in departed
        ),
        departed_since=since,
        covers=covers,
    )


def learning(
    roster: IncarnationRoster, other: IncarnationRoster, generation: str, revision: int, *ended: str
) -> IncarnationRoster:
    return roster.learning(
        other,
        generation,
        ended=[Incarnation(name, "i") for name in ended],
        generation="g",
        revision=revision,
        now=0.0,
    )


def test_what_an_earlier_generation_knew_is_covered_with_its_departures() -> None:
    older = CoveredTables(generation="e", revision=4, departed_since=1)
    table = brought(9, ("a", "e", 3), ("b", "f", 7), since=2, covers=(older,))
    roster = learning(NO_ROSTER, table, "f", 5, "c")
    assert roster.covers == (older, CoveredTables(generation="f", revision=9, departed_since=2))
    assert departures(roster) == [("a", "e", 3), ("b", "f", 7), ("c", "g", 5)]
    assert roster.revision == 0, "who is listed is another matter"
    assert learning(roster, table, "f", 6) == roster


def test_of_several_tables_the_newest_counts_and_departures_add_up() -> None:
    roster = learning(NO_ROSTER, brought(9, ("b", "f", 7), since=2), "f", 5)
    older = learning(roster, brought(8, ("x", "f", 1)), "f", 6)
    assert older.covers == (CoveredTables(generation="f", revision=9, departed_since=2),)
    newer = learning(older, brought(12, ("c", "f", 11), since=8), "f", 7)
    assert newer.covers == (CoveredTables(generation="f", revision=12, departed_since=8),)
    assert departures(newer) == [("x", "f", 1), ("b", "f", 7), ("c", "f", 11)]


def test_where_the_order_of_generations_is_not_told_departures_count_as_of_now() -> None:
    roster = learning(NO_ROSTER, brought(9, ("a", "e", 3)), "e", 5)
    assert departures(roster) == [("a", "e", 3)]
    # Nobody says whether f was before e or after it.
    both = learning(roster, brought(2, ("b", "f", 1)), "f", 8)
    assert [it.generation for it in both.covers] == ["e", "f"]
    assert departures(both) == [("b", "f", 1), ("a", "g", 8)], "b left in the last one, so nothing passes for later"
    late = learning(both, brought(11, ("c", "e", 10)), "e", 9)
    assert departures(late) == [("b", "f", 1), ("a", "g", 8), ("c", "g", 9)]


def test_what_is_dropped_of_an_earlier_generation_is_said_there() -> None:
    names = [f"r{number}" for number in range(MAX_DEPARTED)]
    table = brought(900, *((name, "f", at) for at, name in enumerate(names, 100)))
    roster = learning(NO_ROSTER, table, "f", 5, "x")
    assert len(roster.departed) == MAX_DEPARTED
    assert roster.covers == (CoveredTables(generation="f", revision=900, departed_since=100),)
    assert roster.departed_since == 0


def test_a_controller_that_this_one_has_followed_in_turn_says_nothing_of_this_generation() -> None:
    table = brought(3, ("a", "g", 1), covers=(CoveredTables(generation="g", revision=7),))
    roster = learning(NO_ROSTER, table, "h", 5)
    assert roster.covers == (CoveredTables(generation="h", revision=3),)
    assert departures(roster) == [("a", "g", 5)]
