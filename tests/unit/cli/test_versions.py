"""Versions in `history` and in the differences of a dry run: a given name, or a short digest and its time."""

from __future__ import annotations

import io
from datetime import UTC, datetime
from typing import Final

from slotmesh.cli.commands.history import print_revisions
from slotmesh.cli.view.changes import difference, shown_version, version_times
from slotmesh.v1 import controller_service_pb2 as pb

OLD, NEW = "file:0123456789abcdef", "file:fedcba9876543210"
FIRST, SECOND, THIRD = (datetime(2027, 1, 15, hour, tzinfo=UTC) for hour in (7, 8, 9))


def revision(number: int, time: datetime | None, change: pb.ConfigurationChange) -> pb.ConfigurationRevision:
    made = pb.ConfigurationRevision(revision=number, base_revision=number - 1, changes=[change])
    if time is not None:
        made.time.FromDatetime(time)
    return made


def changed(before: str, after: str, *fields: str) -> pb.ConfigurationChange:
    change = pb.CHANGE_UPDATED if before and after else pb.CHANGE_CREATED if after else pb.CHANGE_DELETED
    return pb.ConfigurationChange(
        resource="backend/b", change=change, fields=fields, version=after, previous_version=before
    )


BACK: Final = (
    revision(4, None, changed(OLD, "")),
    revision(3, THIRD, changed(NEW, OLD, "version", "code", "num_replicas")),
    revision(2, SECOND, changed(OLD, NEW, "version")),
    revision(1, FIRST, changed("", OLD)),
)


def local(time: datetime) -> str:
    return f"{time.astimezone():%Y-%m-%d %H:%M:%S}"


def printed(*revisions: pb.ConfigurationRevision) -> str:
    out = io.StringIO()
    print_revisions(revisions, version_times(revisions), out)
    return " ".join(out.getvalue().split())


def test_a_version_of_code_has_the_time_of_its_first_apply() -> None:
    times = version_times(BACK)
    assert times == {OLD: local(FIRST), NEW: local(SECOND)}
    assert shown_version(OLD, times) == f"01234567 (of {local(FIRST)})"
    assert shown_version(OLD) == "01234567"
    assert [shown_version(it, times) for it in ("1.2", "dist:a==1", "unset", "")] == ["1.2", "dist:a==1", "unset", ""]


def test_a_version_that_was_applied_before_the_oldest_revision_has_no_time() -> None:
    assert version_times(BACK[:3]) == {NEW: local(SECOND)}, "only its roll-back is there"
    deleted = revision(5, FIRST, changed(OLD, ""))
    again = revision(6, SECOND, changed("", OLD))
    assert version_times((again, deleted)) == {}
    assert "(of" not in printed(again, deleted)
    assert version_times((revision(7, THIRD, changed(OLD, OLD, "num_replicas")),)) == {}


def test_the_time_stays_after_roll_backs_and_new_applies() -> None:
    later = (revision(6, THIRD, changed(OLD, NEW)), revision(5, THIRD, changed("", OLD)))
    assert version_times((*later, *BACK)) == version_times(BACK)


def test_history_shows_readable_versions() -> None:
    text = printed(*BACK)
    assert "file:" not in text
    for digest in ("01234567", "fedcba98"):
        assert digest in text
    given = printed(revision(1, FIRST, changed("1", "2", "version", "num_replicas")))
    assert "updated backend/b: version 1 -> 2, num_replicas" in given
    same = printed(revision(1, FIRST, changed("1", "1", "num_replicas")))
    assert "updated backend/b: num_replicas" in same
    older = pb.ConfigurationChange(resource="backend/b", change=pb.CHANGE_UPDATED, fields=["version"])
    assert "updated backend/b: version" in printed(revision(1, FIRST, older)), "without values"


def test_a_difference_shows_them_too() -> None:
    fields = (
        pb.FieldChange(resource="backend/b", field="version", before=NEW, after=OLD),
        pb.FieldChange(resource="backend/b", field="max_ongoing", before="1", after="2"),
    )
    planned = pb.ApplyMeshResponse(revision=3, updated=["backend/b"], fields=fields)
    assert [*difference(planned, version_times(BACK))][1:] == [
        f"    version: fedcba98 (of {local(SECOND)}) -> 01234567 (of {local(FIRST)})",
        "    max_ongoing: 1 -> 2",
    ]
