"""What a dry run prints: what would happen, not that it has happened."""

from __future__ import annotations

import io

from slotmesh.cli.view.changes import printable_change
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
