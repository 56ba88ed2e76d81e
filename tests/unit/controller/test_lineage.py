"""Whether a member's table follows from a store: every term, and both sides of each edge."""

from __future__ import annotations

import pytest

from controller_service.core.desired.state import Desired
from controller_service.core.roster import (
    TERMS_KEPT,
    CoveredTables,
    HeldTable,
    IncarnationRoster,
    LeaderTerm,
    is_newer,
    with_term,
)

TERMS = (LeaderTerm("t1", 5), LeaderTerm("t2", 9), LeaderTerm("t3", 20))
"""The store is at revision 24."""


def newer(revision: int, term_id: str, *, generation: str = "g", terms: tuple[LeaderTerm, ...] = TERMS) -> bool:
    held = HeldTable(generation=generation, revision=revision, term_id=term_id)
    return is_newer(held, generation="g", revision=24, terms=terms)


@pytest.mark.parametrize(("term_id", "last"), [("t1", 8), ("t2", 19), ("t3", 24), ("of another copy", 4), ("older", 4)])
def test_a_table_is_newer_than_what_its_term_has_left_here(term_id: str, last: int) -> None:
    assert not newer(last, term_id)
    assert newer(last + 1, term_id)
    assert newer(1_000, term_id)


def test_no_table_and_tables_of_other_generations_say_nothing() -> None:
    assert not newer(0, "of another copy")
    assert not newer(1_000, "t1", generation="h")
    assert not newer(1_000, "", generation="")


def test_a_table_of_a_later_generation_is_newer_until_the_store_has_learnt_from_it() -> None:
    later = HeldTable(generation="h", revision=3, term_id="t", is_of_later_generation=True)
    for generations, expected in (("", True), ("i", True), ("h", False), ("ih", False)):
        roster = IncarnationRoster(covers=tuple(CoveredTables(generation=each, revision=0) for each in generations))
        assert is_newer(later, generation="g", revision=24, terms=TERMS, roster=roster) is expected


def test_without_known_terms_the_revision_decides() -> None:
    assert not newer(24, "t1", terms=())
    assert newer(25, "t1", terms=())


def test_a_store_that_was_put_back_stays_older_however_often_it_starts() -> None:
    copied = Desired().beginning("one")
    original = copied
    for number in range(5):
        original = original.beginning(f"original-{number}")
    held = HeldTable(generation="g", revision=original.revision, term_id=original.term_id)
    later = HeldTable(generation="g", revision=copied.revision + 3, term_id="one")
    for number in range(50):
        copied = copied.beginning(f"copy-{number}")
        for each in (held, later):
            assert is_newer(each, generation="g", revision=copied.revision, terms=copied.terms)
    assert not is_newer(held, generation="g", revision=original.revision, terms=original.terms)


def test_the_number_of_terms_is_bounded_and_the_newest_stay() -> None:
    terms: tuple[LeaderTerm, ...] = ()
    for number in range(TERMS_KEPT + 3):
        terms = with_term(terms, LeaderTerm(str(number), number))
    assert len(terms) == TERMS_KEPT
    assert (terms[0].term_id, terms[-1].term_id) == ("3", str(TERMS_KEPT + 2))
