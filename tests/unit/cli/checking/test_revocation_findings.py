"""What a check finds of lists of revoked certificates."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slotmesh.cli.checking.seen import Section, SeenMesh, Severity, TlsFacts
from slotmesh.cli.commands.check import findings_of
from tests.unit.cli.checking.meshes import (
    CONTROLLER_ANSWER,
    DAY_S,
    NOW,
    REPLICA_ANSWER,
    ROUTER_ANSWER,
    SEEN,
    one,
    wrong,
)


def with_lists(*facts: TlsFacts | None) -> SeenMesh:
    """Of the controller, the router and the replica."""
    answers = (CONTROLLER_ANSWER, ROUTER_ANSWER, REPLICA_ANSWER)
    return replace(SEEN, answers=tuple(replace(answer, tls=tls) for answer, tls in zip(answers, facts, strict=True)))


NEWEST = TlsFacts(revoked=2, lists_made_at={"a": NOW - 60, "b": None}, lists_end_at=NOW + 60 * DAY_S)


@pytest.mark.parametrize(
    ("made_at", "has"),
    [
        (None, "router/r has no list of revoked certificates"),
        (NOW - DAY_S, "router/r has a list of 2027-01-14 08:00 UTC of revoked"),
    ],
)
def test_a_server_without_the_newest_list_lets_in_who_was_revoked(made_at: float | None, has: str) -> None:
    seen = with_lists(NEWEST, TlsFacts(revoked=3, lists_made_at={"a": made_at}), NEWEST)
    severity, subject, text = one(seen, Section.CERTIFICATES)
    assert (severity, subject) == (Severity.ERROR, "router/r")
    assert text.startswith(has)
    assert "others one of 2027-01-15 07:59 UTC" in text
    told = [it.text for it in findings_of(seen)]
    assert "2 servers have the newest list of revoked certificates, of 2027-01-15 07:59 UTC: 3 in it" in told


def test_each_authority_has_lists_of_its_own() -> None:
    of_both = TlsFacts(lists_made_at={"a": NOW - 60, "b": NOW - DAY_S})
    older_of_b = TlsFacts(lists_made_at={"a": NOW - 60, "b": NOW - 2 * DAY_S})
    of_b_alone = TlsFacts(lists_made_at={"b": NOW - DAY_S})
    assert not wrong(with_lists(of_both, of_b_alone, of_both), Section.CERTIFICATES), "it trusts no other"
    _, subject, text = one(with_lists(of_both, older_of_b, of_b_alone), Section.CERTIFICATES)
    assert subject == "router/r"
    assert "a list of 2027-01-13 08:00 UTC" in text


def test_who_does_not_say_is_told_of_where_there_are_lists() -> None:
    severity, subject, text = one(with_lists(NEWEST, NEWEST, None), Section.CERTIFICATES)
    assert (severity, subject) == (Severity.WARNING, "replica/b-1")
    assert "does not say" in text
    for facts in (None, TlsFacts(), TlsFacts(lists_made_at={"a": None})):
        found = findings_of(with_lists(facts, facts, facts))
        assert not [it for it in found if it.section is Section.CERTIFICATES]


def test_a_list_that_should_have_been_replaced_counts_on() -> None:
    severity, subject, text = one(with_lists(NEWEST, replace(NEWEST, lists_end_at=NOW), NEWEST), Section.CERTIFICATES)
    assert (severity, subject) == (Severity.WARNING, "router/r")
    assert text.endswith("should have been replaced by 2027-01-15 08:00 UTC")


def test_a_server_that_cannot_use_its_files_is_told_of() -> None:
    severity, subject, text = one(with_lists(None, TlsFacts(keeps_older_files=True), TlsFacts()), Section.CERTIFICATES)
    assert (severity, subject) == (Severity.ERROR, "router/r")
    assert "cannot use its files" in text
