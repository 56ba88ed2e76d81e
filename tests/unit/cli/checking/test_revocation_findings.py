"""What a check finds of lists of revoked certificates."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slotmesh.cli.checking.findings import Section, SeenMesh, Severity
from slotmesh.cli.commands.check import findings_of
from slotmesh.v1.info_service_pb2 import TlsStanding
from tests.unit.cli.checking.meshes import (
    CONTROLLER_ANSWER,
    DAY_S,
    NOW,
    REPLICA_ANSWER,
    ROUTER_ANSWER,
    SEEN,
    but,
    one,
    wrong,
)


def lists(
    made_at: dict[str, float | None], *, revoked: int = 0, ends_at: float | None = None, keeps_older_files: bool = False
) -> TlsStanding:
    """`made_at`: of the list of each authority."""
    tls = TlsStanding(revoked=revoked, keeps_older_files=keeps_older_files)
    for authority, at in made_at.items():
        added = tls.authorities.add(id=authority)
        if at is not None:
            added.list_create_time.FromSeconds(int(at))
    if ends_at is not None:
        tls.lists_expire_time.FromSeconds(int(ends_at))
    return tls


def with_lists(*facts: TlsStanding | None) -> SeenMesh:
    """Of the controller, the router and the replica."""
    answers = zip((CONTROLLER_ANSWER, ROUTER_ANSWER, REPLICA_ANSWER), facts, strict=True)
    return replace(SEEN, answers=tuple(it if tls is None else but(it, tls=tls) for it, tls in answers))


NEWEST = lists({"a": NOW - 60, "b": None}, revoked=2, ends_at=NOW + 60 * DAY_S)


@pytest.mark.parametrize(
    ("made_at", "has"),
    [
        (None, "router/r has no list of revoked certificates"),
        (NOW - DAY_S, "router/r has a list of 2027-01-14 08:00 UTC of revoked"),
    ],
)
def test_a_server_without_the_newest_list_lets_in_who_was_revoked(made_at: float | None, has: str) -> None:
    seen = with_lists(NEWEST, lists({"a": made_at}, revoked=3), NEWEST)
    severity, subject, text = one(seen, Section.CERTIFICATES)
    assert (severity, subject) == (Severity.ERROR, "router/r")
    assert text.startswith(has)
    assert "others one of 2027-01-15 07:59 UTC" in text
    told = [it.text for it in findings_of(seen)]
    assert "2 servers have the newest list of revoked certificates, of 2027-01-15 07:59 UTC: 3 in it" in told


def test_each_authority_has_lists_of_its_own() -> None:
    of_both = lists({"a": NOW - 60, "b": NOW - DAY_S})
    older_of_b = lists({"a": NOW - 60, "b": NOW - 2 * DAY_S})
    of_b_alone = lists({"b": NOW - DAY_S})
    assert not wrong(with_lists(of_both, of_b_alone, of_both), Section.CERTIFICATES), "it trusts no other"
    _, subject, text = one(with_lists(of_both, older_of_b, of_b_alone), Section.CERTIFICATES)
    assert subject == "router/r"
    assert "a list of 2027-01-13 08:00 UTC" in text


def test_who_does_not_say_is_told_of_where_there_are_lists() -> None:
    severity, subject, text = one(with_lists(NEWEST, NEWEST, None), Section.CERTIFICATES)
    assert (severity, subject) == (Severity.WARNING, "replica/b-1")
    assert "does not say" in text
    for facts in (None, lists({}), lists({"a": None})):
        found = findings_of(with_lists(facts, facts, facts))
        assert not [it for it in found if it.section is Section.CERTIFICATES]


def test_a_list_that_should_have_been_replaced_counts_on() -> None:
    severity, subject, text = one(
        with_lists(NEWEST, lists({"a": NOW - 60}, revoked=2, ends_at=NOW), NEWEST), Section.CERTIFICATES
    )
    assert (severity, subject) == (Severity.WARNING, "router/r")
    assert text.endswith("should have been replaced by 2027-01-15 08:00 UTC")


def test_a_server_that_cannot_use_its_files_is_told_of() -> None:
    severity, subject, text = one(with_lists(None, lists({}, keeps_older_files=True), lists({})), Section.CERTIFICATES)
    assert (severity, subject) == (Severity.ERROR, "router/r")
    assert "cannot use its files" in text
