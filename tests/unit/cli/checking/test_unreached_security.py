"""What a check reports of plain text where it has not reached all members: what it does not know it does not deny."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slotmesh.cli.checking.findings import Section, SeenMesh, ServerAnswer, Severity
from slotmesh.cli.commands.check import findings_of
from tests.unit.cli.checking.meshes import CONTROLLER_ANSWER, REPLICA_ANSWER, ROUTER_ANSWER, SEEN, announced, one

UNREACHED = tuple(
    ServerAnswer(announced=announced(kind, f"9e05888d95f{at}:7071", f"{kind}-{at}"), problem="no name")
    for at, kind in enumerate(("router", "replica", "replica"))
)


def seen(*answers: ServerAnswer) -> SeenMesh:
    return replace(SEEN, answers=answers)


@pytest.mark.parametrize("at", [0, 1, 2])
def test_members_off_loopback_that_were_not_reached_are_not_taken_for_safe(at: int) -> None:
    severity, _, text = one(seen(CONTROLLER_ANSWER, UNREACHED[at]), Section.SECURITY)
    assert severity is Severity.WARNING
    assert UNREACHED[at].announced.address in text
    assert "not known" in text


def test_all_that_were_not_reached_are_counted() -> None:
    assert "3 of 4 addresses" in one(seen(CONTROLLER_ANSWER, *UNREACHED), Section.SECURITY)[2]


def test_one_that_was_reached_in_plain_text_off_loopback_is_a_warning_beside_that() -> None:
    open_ = replace(ROUTER_ANSWER, announced=announced("router", "10.0.0.1:7", "r"))
    texts = [it.text for it in findings_of(seen(open_, UNREACHED[1])) if it.section is Section.SECURITY]
    assert len(texts) == 2
    assert "10.0.0.1:7" in texts[0]


def test_a_mesh_on_loopback_of_which_a_member_does_not_answer_is_on_loopback() -> None:
    silent = replace(REPLICA_ANSWER, problem="connection refused")
    found = [it for it in findings_of(seen(CONTROLLER_ANSWER, silent)) if it.section is Section.SECURITY]
    assert [it.text for it in found] == ["in plain text, on loopback only"]
