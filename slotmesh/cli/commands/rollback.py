"""`slotmesh rollback`: restores backends and endpoints of an earlier revision."""

from __future__ import annotations

from typing import Annotated, Any, Final

import typer

from slotmesh.cli.console import CommandFailed, Output, OutputForm, confirm, is_interactive, say
from slotmesh.cli.operator import Operator
from slotmesh.cli.parameters import BACKEND, CONTROLLER, REVISION, ControllerAddress, DryRun, Yes, name_of
from slotmesh.cli.view.changes import as_applied, consequences, difference, printable_change, times_for
from slotmesh.cli.waiting import DEFAULT_PATIENCE, Patience, WaitForReady, patience_of, wait_for_backends
from slotmesh.v1 import controller_service_pb2 as pb

_MOST_DIGITS: Final = 19
"""Revisions are 64 bits."""


def _revision(text: str | int) -> int:
    name = name_of(REVISION)(str(text))
    if not (name.isascii() and name.isdecimal() and len(name) < _MOST_DIGITS):
        raise typer.BadParameter(f"must be a revision, as 12 or revision/12, is {text!r}")
    return int(name)


async def rollback(
    revision: Annotated[
        int | None,
        typer.Argument(
            metavar="REVISION",
            parser=_revision,
            help="The revision whose configuration should be again, as `slotmesh history` shows it; 0: before anything"
            " was applied. Without one, the newest change is undone, all steps of a shift together.",
        ),
    ] = None,
    *,
    dry_run: DryRun = False,
    yes: Yes = False,
    wait: WaitForReady = None,
    timeout: Patience = DEFAULT_PATIENCE,
    output: Output = OutputForm.TABLE,
    address: ControllerAddress = CONTROLLER,
) -> None:
    """Make backends, endpoints and traffic what they were at an earlier revision.

    Without a REVISION the newest change is undone. All steps of one shift are one change: the weights before the shift
    come back, and a shift that is under way ends. Changes that others made during the shift stay. A deployment and what
    was rolled back of it are one change, too. What is undone already is refused: name the REVISION.

    It is a change like any other: it makes a new revision, and can be undone itself, so that twice in a row is nothing
    done: two steps back need the REVISION. What was not there yet is deleted. Replicas are replaced where their handler
    or configuration was another one. Traffic to a backend whose code changes stays where it is until all replicas of
    that backend run the code; then it moves at once. With --wait, the default on a terminal, it returns when all of
    that is done; if it is not in time, fails or is rolled back, it prints why, with exit status 3.

    Like this:

        slotmesh rollback
        slotmesh rollback 12 --dry-run
        slotmesh rollback --wait
    """
    patience = None if dry_run else patience_of(wait, timeout)
    async with Operator.at(address) as operator:
        if is_interactive() and not (yes or dry_run):
            revision = await _confirmed(operator, revision)
        applied = await _roll_back(operator, revision, output, dry_run=dry_run)
        if patience is not None:
            changed = (it.partition("/") for it in (*applied.created, *applied.updated))
            backends = {name for kind, _, name in changed if kind == BACKEND}
            backends.update(*(it.backends for it in applied.waits))
            await wait_for_backends(operator, applied, backends, patience, done="rolled back")


async def _confirmed(operator: Operator, revision: int | None) -> int | None:
    """Asks before anything is deleted. Returns the revision that it was asked about."""
    planned = await operator.send(await _request(operator, revision, validate_only=True))
    for subject in planned.deleted:
        typer.echo(f"- {subject}", err=True)
    if planned.deleted:
        confirm("delete this, as it was not there before?", yes=False)
    return planned.rolled_back_to if planned.HasField("rolled_back_to") else revision


async def _request(operator: Operator, revision: int | None, **terms: Any) -> pb.RollbackRequest:
    """To go back to a revision; None: to undo the newest change, which is named."""
    if revision is not None:
        return pb.RollbackRequest(revision=revision, **terms)
    newest = await operator.revisions(1)
    if not newest:
        raise CommandFailed("there is no change that could be undone: none is kept")
    return pb.RollbackRequest(change=newest[0].revision, **terms)


async def _roll_back(
    operator: Operator, revision: int | None, output: OutputForm, *, dry_run: bool
) -> pb.ApplyMeshResponse:
    undone = await operator.send(await _request(operator, revision, validate_only=dry_run))
    applied = as_applied(undone)
    if dry_run:
        for line in difference(applied, await times_for(operator, applied)):
            say(line, err=True)
    printable_change(applied, is_planned=dry_run).write(output)
    would = "would be" if dry_run else "is"
    restored = undone.rolled_back_to
    if not undone.HasField("rolled_back_to"):
        say(f"slotmesh: the newest change {would} undone; changes since then stay", err=True)
    elif restored == 0:
        say(f"slotmesh: the configuration {would} that of revision 0, before anything was applied", err=True)
    else:
        say(f"slotmesh: the configuration {would} that of revision {restored} again", err=True)
    for line in consequences(applied, is_planned=dry_run):
        say(f"slotmesh: {line}", err=True)
    return applied
