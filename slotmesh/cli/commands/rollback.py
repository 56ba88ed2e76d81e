"""`slotmesh rollback`: makes backends and endpoints what they were."""

from __future__ import annotations

import sys
from typing import Annotated, Final

import typer

from slotmesh.cli.operator import Operator
from slotmesh.cli.outcome import complete
from slotmesh.cli.output import Output, OutputForm
from slotmesh.cli.parameters import CONTROLLER, ControllerAddress
from slotmesh.cli.subjects import REVISION, name_of
from slotmesh.cli.view.applied import printable_change

_MOST_DIGITS: Final = 19
"""Revisions are 64 bits."""


def _revision(text: str | int) -> int:
    name = name_of(REVISION)(str(text))
    if not (name.isascii() and name.isdecimal() and len(name) < _MOST_DIGITS):
        raise typer.BadParameter(f"must be a revision, as 12 or revision/12, is {text!r}")
    return int(name)


def rollback(
    revision: Annotated[
        int | None,
        typer.Argument(
            metavar="REVISION",
            parser=_revision,
            help="The revision whose configuration should be again, as `slotmesh history` shows it. Without one, the"
            " newest change is undone, all steps of a shift together.",
            show_default=False,
        ),
    ] = None,
    *,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what it would change, and change nothing.")] = False,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Do not ask, on a terminal, before anything is deleted.")
    ] = False,
    output: Output = OutputForm.TABLE,
    address: ControllerAddress = CONTROLLER,
) -> None:
    """Make backends, endpoints and traffic what they were at an earlier revision.

    Without a REVISION the newest change is undone. All steps of one shift are one change: the weights before the shift
    come back, and a shift that is under way ends. Changes that others made during the shift stay. A deployment and what
    was taken back of it are one change, too. What is undone already is refused: name the REVISION.

    It is a change like any other: it makes a new revision, and can be undone itself, so that twice in a row is nothing
    done: two steps back need the REVISION. What was not there yet is deleted. Replicas are replaced where their handler
    or configuration was another one.

    Like this:

        slotmesh rollback
        slotmesh rollback 12 --dry-run
    """
    asks = sys.stdin.isatty() and sys.stderr.isatty() and not (yes or dry_run)
    complete(_roll_back(revision, dry_run, asks, output, address))


async def _roll_back(revision: int | None, dry_run: bool, asks: bool, output: OutputForm, address: str) -> None:
    async with Operator.at(address) as operator:
        if asks:
            restored, planned = await operator.roll_back(revision, dry_run=True)
            for subject in planned.deleted:
                typer.echo(f"- {subject}", err=True)
            if planned.deleted:
                typer.confirm(f"delete this, as it was not there at revision {restored}?", abort=True, err=True)
            revision = restored if restored != planned.revision else revision
        restored, applied = await operator.roll_back(revision, dry_run=dry_run)
    printable_change(applied).write(output)
    would = "would be" if dry_run else "is"
    if restored != applied.revision:
        typer.echo(f"slotmesh: the configuration {would} that of revision {restored} again", err=True)
    else:
        typer.echo(f"slotmesh: the traffic {would} that before the newest shift; changes since then stay", err=True)
