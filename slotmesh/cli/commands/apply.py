"""`slotmesh apply`: applies a file to the mesh."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from slotmesh.cli.console import WRONG_INPUT, CommandFailed, Output, OutputForm, confirm, say
from slotmesh.cli.operator import Operator
from slotmesh.cli.parameters import CONTROLLER, ControllerAddress, DryRun, Yes
from slotmesh.cli.view.changes import code_changes, code_lines, conflicts, difference, print_change, times_for
from slotmesh.cli.waiting import DEFAULT_PATIENCE, Patience, WaitForReady, patience_of, wait_for_backends
from slotmesh.spec.document import load_mesh, parse_mesh
from slotmesh.spec.model import InvalidSpec, Mesh
from slotmesh.v1 import controller_service_pb2 as pb

CODE_ON_HOLD: Final = (
    "slotmesh: warning: the controller is on hold: this stores the code of {backends} as it is in the folder now, and"
    " replicas are replaced by that after `slotmesh state adopt`; apply it from a folder with the code that should run"
)


async def apply(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The mesh, as YAML; `-` reads it from stdin.")],
    prune: Annotated[
        bool, typer.Option("--prune", help="Delete the backends and endpoints that the file lacks.")
    ] = False,
    *,
    dry_run: DryRun = False,
    force: Annotated[
        bool, typer.Option("--force", help="Override what another client has changed, and retry what was rolled back.")
    ] = False,
    yes: Yes = False,
    wait: WaitForReady = None,
    timeout: Patience = DEFAULT_PATIENCE,
    output: Output = OutputForm.TABLE,
    address: ControllerAddress = CONTROLLER,
) -> None:
    """Make the mesh what a file says.

    Creates and updates backends and endpoints. What the file has not changed since it was applied last stays as it is
    now, be it that `slotmesh traffic` has changed it; what both have changed is a conflict: it is shown, and nothing
    is changed without `--force`. What was rolled back is not tried again by the same file without `--force`, either;
    a file with other settings for replicas is the next try, as a whole. What the file lacks stays as well, unless
    `--prune` is given. If the file has errors, all of them are reported, and nothing is changed. On a terminal it
    waits until the backends of the file are ready; if one is not in time, fails, or was rolled back, now or after an
    earlier apply, it prints why, with exit status 3.

    A file looks like this:

        backends:
          digits-v1: {handler: "examples.digits.app:Digits", num_replicas: 2}
        endpoints:
          digits: {traffic: {digits-v1: 1.0}}
    """
    mesh, patience = _read(file, prune=prune), patience_of(wait, timeout)
    async with Operator.at(address) as operator:
        planned = await operator.apply_file(mesh, prune=prune, force=force, validate_only=True)
        await _show_plan(operator, file, planned)
        if dry_run:
            print_change(planned, output, is_planned=True)
            _say_rolled_back(file, planned)
            return
        if _changes(planned):
            confirm("apply this?", yes=yes)
        # Applies exactly the changes shown above: any change in between is a REVISION_CONFLICT.
        applied = await operator.apply_file(mesh, prune=prune, force=force, expected_revision=planned.revision)
        # After a lost reply the lists of a long one are not known any more. They are what was planned.
        planned.revision = applied.revision
        print_change(planned, output)
        if patience is not None:
            done, backends = "applied" if _changes(planned) else "applied before", {it.name for it in mesh.backends}
            rolled_back = _rolled_back(file, planned)
            await wait_for_backends(operator, planned, backends, patience, done=done, rolled_back=rolled_back)
            return
        _say_rolled_back(file, planned)
        if mesh.backends:
            typer.echo(
                f"slotmesh: replicas come and go now; how they do:  slotmesh status --address {address}", err=True
            )


async def _show_plan(operator: Operator, file: Path, planned: pb.ApplyMeshResponse) -> None:
    """Raises CommandFailed if it conflicts with what is there."""
    for line in (*difference(planned, await times_for(operator, planned)), *conflicts(planned)):
        say(line, err=True)
    for line in code_lines(planned):
        say(f"slotmesh: {line}", err=True)
    if planned.conflicts:
        raise CommandFailed(
            f"{file}: conflicts with what is there, nothing was applied; --force takes what the file says,"
            " `slotmesh get` prints a file with what is there"
        )
    if operator.is_on_hold and (named := code_changes(planned)):
        say(CODE_ON_HOLD.format(backends=", ".join(named)), err=True)


def _changes(planned: pb.ApplyMeshResponse) -> bool:
    return bool(planned.created or planned.updated or planned.deleted)


def _rolled_back(file: Path, planned: pb.ApplyMeshResponse) -> list[str]:
    return [
        f"{it.backend}: {it.reason}; its {', '.join(it.fields)} is not what the file says. Once the cause is gone,"
        f" `slotmesh apply {file} --force` tries it again"
        for it in planned.rolled_back
    ]


def _say_rolled_back(file: Path, planned: pb.ApplyMeshResponse) -> None:
    for line in _rolled_back(file, planned):
        say(f"slotmesh: rolled back before: {line}", err=True)


def _read(file: Path, *, prune: bool) -> Mesh:
    try:
        mesh = parse_mesh(sys.stdin.buffer.read()) if str(file) == "-" else load_mesh(file)
    except InvalidSpec as invalid:
        count = len(invalid.violations)
        lines = [f"{file}: {count} {'error' if count == 1 else 'errors'}, nothing was applied"]
        raise CommandFailed("\n  ".join(lines + str(invalid).splitlines()), WRONG_INPUT) from invalid
    if prune and not mesh.backends and not mesh.endpoints:
        raise CommandFailed(
            f"{file}: names no backend and no endpoint, so --prune would delete the whole mesh; nothing was applied."
            " To do that, name the endpoints and backends: `slotmesh delete $(slotmesh get -o name)`",
            WRONG_INPUT,
        )
    if mesh == Mesh():
        say(f"slotmesh: {file}: names no backend, endpoint or route: it changes nothing", err=True)
    return mesh
