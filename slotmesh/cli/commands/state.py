"""`slotmesh state`: the state of a controller as JSON, from and to the file that it keeps it in."""

from __future__ import annotations

import subprocess
import sys
from typing import Annotated

import typer

from slotmesh.cli.local.child import environment

state = typer.Typer(name="state", no_args_is_help=True, help="Export or import the state file of a controller.")

StateFilePath = Annotated[str, typer.Argument(metavar="PATH", help="The file that the controller has with --state.")]


@state.command("export")
def export(path: StateFilePath) -> None:
    """Print all that a state file has, as JSON. A controller may have the file in use.

    Like this:

        slotmesh state export mesh.state > mesh.json
    """
    raise typer.Exit(_run(path, "--export-state"))


@state.command("import")
def import_(
    document: Annotated[str, typer.Argument(metavar="FILE", help="What `state export` printed; `-` reads stdin.")],
    path: StateFilePath,
) -> None:
    """Make a new state file of an export: the configuration, and its history.

    The file must not be there yet. Its controller begins a new generation: it learns from routers which replicas there
    are and who owns which keys, and nothing that runs is lost.

    Like this:

        slotmesh state import mesh.json mesh.state
    """
    raise typer.Exit(_run(path, f"--import-state={document}"))


def _run(path: str, flag: str) -> int:
    """The controller's own program knows its files."""
    command = [sys.executable, "-m", "controller_service", f"--state={path}", flag]
    return subprocess.run(command, env=environment(), check=False).returncode  # noqa: S603 - our own module, no shell
