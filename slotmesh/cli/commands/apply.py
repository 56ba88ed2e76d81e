"""`slotmesh apply`: applies a file to the mesh."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Final

import typer

from slotmesh.cli.console import WRONG_INPUT, CommandFailed, Output, OutputForm, complete, say
from slotmesh.cli.operator import Operator
from slotmesh.cli.parameters import CONTROLLER, ControllerAddress, DryRun, Yes
from slotmesh.cli.versions import times_for
from slotmesh.cli.view.changes import code_changes, code_lines, conflicts, consequences, difference, printable_change
from slotmesh.cli.waiting import (
    DEFAULT_PATIENCE,
    Patience,
    WaitForReady,
    after_change,
    ends_of_rollouts,
    wait_until_ready,
)
from slotmesh.spec.document import load_mesh, parse_mesh
from slotmesh.spec.model import InvalidSpec, Mesh

CODE_ON_HOLD: Final = (
    "slotmesh: warning: the controller is on hold: this stores the code of {backends} as it is in the folder now, and"
    " replicas are replaced by that after `slotmesh state adopt`; apply it from a folder with the code that should run"
)


def apply(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The mesh, as YAML; `-` reads it from stdin.")],
    prune: Annotated[
        bool, typer.Option("--prune", help="Delete the backends and endpoints that the file lacks.")
    ] = False,
    *,
    dry_run: DryRun = False,
    force: Annotated[
        bool, typer.Option("--force", help="The file overrides fields that another client has changed, too.")
    ] = False,
    yes: Yes = False,
    wait: WaitForReady = None,
    timeout: Patience = DEFAULT_PATIENCE,
    output: Output = OutputForm.TABLE,
    address: ControllerAddress = CONTROLLER,
) -> None:
    """Make the mesh what a file says.

    Creates and updates backends and endpoints. What the file has not changed since it was applied last stays as it is
    now, be it that `slotmesh traffic` has changed it; what both have changed is a conflict: it is shown, and nothing is
    changed without `--force`. What the file lacks stays as well, unless `--prune` is given. If the file has errors, all
    of them are reported, and nothing is changed. On a terminal it waits until the backends of the file are ready; if
    one is not in time, fails, or was taken back, now or after an earlier apply, it prints why, with exit status 3.

    A file looks like this:

        backends:
          digits-v1: {handler: "examples.digits.app:Digits", num_replicas: 2}
        endpoints:
          digits: {traffic: {digits-v1: 1.0}}
    """
    is_terminal = sys.stdin.isatty() and sys.stderr.isatty()
    waits = is_terminal if wait is None else wait
    terms = ApplyTerms(
        prune=prune,
        dry_run=dry_run,
        force=force,
        asks=is_terminal and not yes,
        patience=timeout if waits else None,
        output=output,
    )
    complete(_apply(file, terms, address))


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyTerms:
    """How a file is applied."""

    prune: bool
    dry_run: bool
    force: bool
    asks: bool
    """Before anything changes."""
    patience: timedelta | None
    """How long the mesh may take to get ready; None: it is not waited for."""
    output: OutputForm


async def _apply(file: Path, terms: ApplyTerms, address: str) -> None:
    mesh = _read(file)
    if terms.prune and not mesh.backends and not mesh.endpoints:
        raise CommandFailed(
            f"{file}: names no backend and no endpoint, so --prune would delete the whole mesh; nothing was applied."
            " To do that, name the endpoints and backends: `slotmesh delete $(slotmesh get -o name)`",
            WRONG_INPUT,
        )
    if mesh == Mesh():
        say(f"slotmesh: {file}: names no backend, endpoint or route: it changes nothing", err=True)
    async with Operator.at(address) as operator:
        planned = await operator.apply_file(mesh, prune=terms.prune, force=terms.force, dry_run=True)
        for line in (*difference(planned, await times_for(operator, planned)), *conflicts(planned)):
            say(line, err=True)
        for line in code_lines(planned):
            say(f"slotmesh: {line}", err=True)
        if planned.conflicts:
            raise CommandFailed(
                f"{file}: conflicts with what is there, nothing was applied; --force takes what the file says,"
                " `slotmesh get` prints a file with what is there"
            )
        if operator.connection.is_on_hold and (named := code_changes(planned)):
            say(CODE_ON_HOLD.format(backends=", ".join(named)), err=True)
        if terms.dry_run:
            printable_change(planned, is_planned=True).write(terms.output)
            for line in consequences(planned, is_planned=True):
                say(f"slotmesh: {line}", err=True)
            return
        is_change = bool(planned.created or planned.updated or planned.deleted)
        if is_change and terms.asks:
            typer.confirm("apply this?", abort=True, err=True)
        ended = await ends_of_rollouts(operator) if terms.patience is not None else {}
        # Applies exactly the changes shown above: any change in between is a REVISION_CONFLICT.
        applied = await operator.apply_file(
            mesh, prune=terms.prune, force=terms.force, expected_revision=planned.revision
        )
        # After a lost reply the lists of a long one are not known any more. They are what was planned.
        planned.revision = applied.revision
        printable_change(planned).write(terms.output)
        for line in consequences(planned):
            say(f"slotmesh: {line}", err=True)
        if terms.patience is not None:
            backends, patience = {it.name for it in mesh.backends}, terms.patience
            done = "applied" if is_change else "applied before"
            with after_change(operator, f"{done}, revision {applied.revision}", "slotmesh status", patience):
                await wait_until_ready(
                    operator,
                    backends,
                    applied.revision,
                    patience,
                    done=done,
                    ended=ended,
                    file=mesh.backends,
                    endpoints=[it.endpoint for it in planned.waits],
                )
            return
    if mesh.backends:
        typer.echo(f"slotmesh: replicas come and go now; how they do:  slotmesh status --address {address}", err=True)


def _read(file: Path) -> Mesh:
    try:
        return parse_mesh(sys.stdin.buffer.read()) if str(file) == "-" else load_mesh(file)
    except InvalidSpec as invalid:
        count = len(invalid.violations)
        lines = [f"{file}: {count} {'error' if count == 1 else 'errors'}, nothing was applied"]
        raise CommandFailed("\n  ".join(lines + str(invalid).splitlines()), WRONG_INPUT) from invalid
