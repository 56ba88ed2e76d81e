"""What is known of rosters: whether a router covers them, and which replicas have departed."""

from __future__ import annotations

import pytest

from router_service.core.rosters import (
    NO_ROSTER,
    KnownDeparture,
    KnownGeneration,
    KnownTerm,
    RosterVersion,
    TableRoster,
)

ROSTER = TableRoster(
    RosterVersion("new", 10),
    departed=(
        KnownDeparture(("a", "1"), RosterVersion("old", 4)),
        KnownDeparture(("b", "1"), RosterVersion("old", 6)),
        KnownDeparture(("c", "1"), RosterVersion("new", 3)),
    ),
    covers=(KnownGeneration("older", 2, 2), KnownGeneration("old", 7, 3)),
)
"""Of a controller that does not remember, and has learnt of two before it."""


@pytest.mark.parametrize(
    ("versions", "is_covered"),
    [
        ([], True),
        ([("new", 10)], True),
        ([("new", 9), ("old", 7), ("older", 1)], True),
        ([("new", 11)], False),
        ([("new", 10), ("old", 8)], False),
        ([("another", 0)], False),
    ],
)
def test_a_roster_covers_those_up_to_what_it_knows(versions: list[tuple[str, int]], is_covered: bool) -> None:
    assert ROSTER.covers_all([RosterVersion(*each) for each in versions]) is is_covered


FOLLOWING = TableRoster(
    RosterVersion("g", 30, "t3"),
    covers=(KnownGeneration("old", 7, 0),),
    terms=(KnownTerm("t1", 5), KnownTerm("t2", 10), KnownTerm("t3", 20)),
)
"""Of the third of three terms that its controller remembers."""


@pytest.mark.parametrize(
    ("version", "is_covered"),
    [
        (("g", 30, "t3"), True),
        (("g", 31, "t3"), False),
        (("g", 19, "t2"), True),
        (("g", 20, "t2"), False),
        (("g", 9, "t1"), True),
        (("g", 10, "t1"), False),
        (("g", 4, "forgotten"), True),
        (("g", 5, "of another copy"), False),
        (("g", 30, ""), True),
        (("old", 7, "of that generation"), True),
        (("old", 8, "t3"), False),
    ],
)
def test_a_roster_covers_none_of_a_term_from_which_its_table_does_not_follow(
    version: tuple[str, int, str], is_covered: bool
) -> None:
    assert FOLLOWING.covers_all([RosterVersion(*version)]) is is_covered
    assert not is_covered or FOLLOWING.covers_all([RosterVersion("g", 30, "t3"), RosterVersion(*version)])


def test_without_terms_revisions_alone_count() -> None:
    assert TableRoster(RosterVersion("g", 5)).covers_all([RosterVersion("g", 5, "t")])


@pytest.mark.parametrize(
    ("first", "lost"),
    [
        (("new", 10), ""),
        (("new", 3), ""),
        (("new", 2), "c"),
        (("old", 6), "c"),
        (("old", 5), "b"),
        (("old", 3), "a"),
        (("old", 2), "some replica"),
        (("older", 9), "some replica"),
        (("another", 1), "some replica"),
        (None, "some replica"),
    ],
)
def test_who_has_departed_since_a_call_was_first_sent(first: tuple[str, int] | None, lost: str) -> None:
    assert ROSTER.lost_since(first and RosterVersion(*first)) == lost


def test_without_any_roster_nothing_is_covered_but_nothing() -> None:
    assert NO_ROSTER.covers_all([])
    assert not NO_ROSTER.covers_all([RosterVersion("g", 1)])
