"""The history of the configuration as a table for people, and as JSON for programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TextIO

from slotmesh.cli.snapshot import Revision, RevisionChange
from slotmesh.cli.view.report import console_of, new_table


def print_revisions(revisions: Sequence[Revision], out: TextIO) -> None:
    """Writes a row a revision, newest first. Colours only where `out` is a terminal."""
    console = console_of(out)
    if not revisions:
        console.print("nothing was changed yet")
        return
    table = new_table("History", "revision", "time", "who", "what", "note")
    for it in revisions:
        time = "" if it.time is None else it.time.astimezone().strftime("%Y-%m-%d %H:%M:%S")
        table.add_row(str(it.revision), time, it.who, "\n".join(map(_words, it.changes)), it.note)
    console.print(table)
    oldest = revisions[-1]
    console.print(f"before revision {oldest.revision} it was revision {oldest.base_revision}")


def as_json(revisions: Sequence[Revision]) -> dict[str, Any]:
    """The same, as values of JSON. Times are ISO 8601 in UTC."""
    return {
        "revisions": [
            {
                "revision": it.revision,
                "base_revision": it.base_revision,
                "time": None if it.time is None else it.time.isoformat(),
                "who": it.who,
                "note": it.note,
                "changes": [
                    {"subject": each.subject, "change": each.change, "fields": list(each.fields)} for each in it.changes
                ],
            }
            for it in revisions
        ]
    }


def _words(change: RevisionChange) -> str:
    return f"{change.change} {change.subject}" + (f": {', '.join(change.fields)}" if change.fields else "")
