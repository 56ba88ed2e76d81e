"""`slotmesh history`: the changes of the configuration, each with its time and author, as a table or JSON."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated, TextIO

import typer

from slotmesh.cli.console import AsJson, Output, OutputForm, Printable, TableColumns, console_of, form_of, table_of
from slotmesh.cli.documents import local_time, message_document, word_of
from slotmesh.cli.operator import Operator
from slotmesh.cli.parameters import CONTROLLER, REVISION, ControllerAddress
from slotmesh.cli.view.changes import MOST_REVISIONS, VersionTimes, shown_version, version_times
from slotmesh.spec.writing import UNSET
from slotmesh.v1 import controller_service_pb2 as pb


def print_revisions(revisions: Sequence[pb.ConfigurationRevision], times: VersionTimes, out: TextIO) -> None:
    """Writes a row a revision, newest first. Colours only where `out` is a terminal."""
    console = console_of(out)
    if not revisions:
        console.print("nothing was changed yet")
        return
    columns: TableColumns[pb.ConfigurationRevision] = {
        "revision": lambda it: it.revision,
        "time": lambda it: local_time(it, "time"),
        "who": lambda it: it.who,
        "what": lambda it: "\n".join(_line(each, times) for each in it.changes),
        "note": lambda it: it.note,
    }
    console.print(table_of("History", columns, revisions))
    oldest = revisions[-1]
    console.print(f"before revision {oldest.revision} it was revision {oldest.base_revision}")


def _line(change: pb.ConfigurationChange, times: VersionTimes) -> str:
    """What became of one resource. A version named after its code has the time at which it was applied first."""
    word, fields = word_of(change, "change"), list(change.fields)
    before, after = (shown_version(it, times) or UNSET for it in (change.previous_version, change.version))
    if change.version != change.previous_version:
        fields = [it for it in fields if it != "version"]
        one = before if change.previous_version else after
        fields.insert(0, f"version {before} -> {after}" if word == "updated" else f"version {one}")
    return f"{word} {change.resource}" + (f": {', '.join(fields)}" if fields else "")


async def history(
    most: Annotated[int, typer.Option("--most", min=1, max=10_000, help="How many revisions, newest first.")] = 20,
    as_document: AsJson = False,
    output: Output = OutputForm.TABLE,
    address: ControllerAddress = CONTROLLER,
) -> None:
    """Show the changes of backends and endpoints, newest first.

    Each has a revision, which `slotmesh rollback` goes back to. The controller keeps the newest 200; with `--state`
    they outlive it.
    """
    form = form_of(output, as_document)
    async with Operator.at(address) as operator:
        kept = await operator.revisions(max(most, MOST_REVISIONS))  # the first apply of a version may be far back
    revisions = kept[:most]
    Printable(
        table=partial(print_revisions, revisions, version_times(kept)),
        document=lambda: {"revisions": [*map(message_document, revisions)]},
        names=lambda: (f"{REVISION}/{it.revision}" for it in revisions),
    ).write(form)
