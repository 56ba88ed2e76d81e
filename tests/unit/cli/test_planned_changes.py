"""What a dry run prints: what would happen, not that it has happened."""

from __future__ import annotations

import io

import pytest

from slotmesh.cli.view.changes import code_changes, printable_change
from slotmesh.v1 import controller_service_pb2 as pb

CHANGE = pb.ApplyMeshResponse(
    revision=7, created=["backend/a"], updated=["backend/b"], unchanged=["backend/c"], deleted=["e/d"]
)


def printed(*, is_planned: bool) -> list[str]:
    out = io.StringIO()
    printable_change(CHANGE, is_planned=is_planned).table(out)
    return out.getvalue().splitlines()


def test_a_change_is_printed_as_made() -> None:
    assert printed(is_planned=False) == [
        "created   backend/a",
        "updated   backend/b",
        "unchanged backend/c",
        "deleted   e/d",
        "revision  7",
    ]


def test_a_plan_is_printed_as_what_would_be_made() -> None:
    assert printed(is_planned=True) == [
        "would be created  backend/a",
        "would be updated  backend/b",
        "unchanged         backend/c",
        "would be deleted  e/d",
        "revision          7, nothing was changed",
    ]


def test_documents_and_names_are_the_same() -> None:
    planned, made = printable_change(CHANGE, is_planned=True), printable_change(CHANGE)
    assert planned.document() == made.document()
    assert [*planned.names()] == [*made.names()]


@pytest.mark.parametrize(("after", "is_named"), [("file:0123456789ab", True), ("2.0", False)])
def test_only_code_that_a_change_would_bring_is_named(after: str, is_named: bool) -> None:
    planned = pb.ApplyMeshResponse(updated=["backend/v1"], unchanged=["backend/v2"])
    planned.fields.add(resource="backend/v1", field="version", before="1.0", after=after)
    assert code_changes(planned) == ["backend/v1"] * is_named
