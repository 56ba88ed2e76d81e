"""`slotmesh history`: the changes of the configuration, each with its time and author, as a table or JSON."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, TextIO

import typer

from slotmesh.cli.console import AsJson, Output, OutputForm, Printable, complete, console_of, form_of
from slotmesh.cli.operator import Operator
from slotmesh.cli.parameters import CONTROLLER, REVISION, ControllerAddress
from slotmesh.cli.snapshot import Revision, RevisionChange
from slotmesh.cli.view.report import new_table


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


def history(
    most: Annotated[int, typer.Option("--most", min=1, max=10_000, help="Show so many revisions, the newest.")] = 20,
    as_document: AsJson = False,
    output: Output = OutputForm.TABLE,
    address: ControllerAddress = CONTROLLER,
) -> None:
    """Show the changes of backends and endpoints, newest first.

    Each has a revision, which `slotmesh rollback` goes back to. The controller keeps the newest 200; with `--state`
    they outlive it.
    """
    form = form_of(output, as_document)
    revisions = complete(_ask(address, most))
    Printable(
        table=partial(print_revisions, revisions),
        document=partial(as_json, revisions),
        names=lambda: (f"{REVISION}/{it.revision}" for it in revisions),
    ).write(form)


async def _ask(address: str, most: int) -> tuple[Revision, ...]:
    async with Operator.at(address) as operator:
        return await operator.revisions(most)
