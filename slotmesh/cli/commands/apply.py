"""`slotmesh apply`: makes the mesh what a file says."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from slotmesh.cli.operator import Operator
from slotmesh.cli.outcome import WRONG_INPUT, CommandFailed, complete
from slotmesh.cli.parameters import CONTROLLER, ControllerAddress
from slotmesh.cli.snapshot import Applied
from slotmesh.spec.document import load_mesh, parse_mesh
from slotmesh.spec.model import InvalidSpec, Mesh


def apply(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The mesh, as YAML; `-` reads it from stdin.")],
    prune: Annotated[
        bool, typer.Option("--prune", help="Delete the backends and endpoints that the file lacks.")
    ] = False,
    address: ControllerAddress = CONTROLLER,
) -> None:
    """Make the mesh what a file says.

    Creates and updates backends and endpoints; applying the same file again changes nothing. What the file lacks stays
    as it is, unless `--prune` is given. All mistakes of a file are told at once, and then nothing is changed. Replicas
    are not waited for: `slotmesh status` says how they do.

    A file looks like this:

        backends:
          digits-v1: {handler: "examples.digits.app:Digits", num_replicas: 2}
        endpoints:
          digits: {traffic: {digits-v1: 1.0}}
    """
    complete(_apply(file, prune, address))


async def _apply(file: Path, prune: bool, address: str) -> None:
    mesh = _read(file)
    if prune and not mesh.backends and not mesh.endpoints:
        raise CommandFailed(
            f"{file}: names no backend and no endpoint, so --prune would delete the whole mesh; nothing was applied."
            " To do that, delete the endpoints and backends by their names (ControllerService)",
            WRONG_INPUT,
        )
    async with Operator.at(address) as operator:
        _show(await operator.apply(mesh, prune=prune))
    if mesh.backends:
        typer.echo(f"slotmesh: replicas come and go now; how they do:  slotmesh status --address {address}", err=True)


def _read(file: Path) -> Mesh:
    try:
        return parse_mesh(sys.stdin.buffer.read()) if str(file) == "-" else load_mesh(file)
    except InvalidSpec as invalid:
        count = len(invalid.mistakes)
        lines = [f"{file}: {count} {'mistake' if count == 1 else 'mistakes'}, nothing was applied"]
        raise CommandFailed("\n  ".join(lines + str(invalid).splitlines()), WRONG_INPUT) from invalid


def _show(applied: Applied) -> None:
    for what in ("created", "updated", "unchanged", "deleted"):
        for name in getattr(applied, what):
            typer.echo(f"{what:<9} {name}")
    typer.echo(f"revision  {applied.revision}")
