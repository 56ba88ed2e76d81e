"""The commands by name, and what they have in common."""

from __future__ import annotations

from typing import Annotated

import typer

from slotmesh.cli.commands.apply import apply
from slotmesh.cli.commands.call import call
from slotmesh.cli.commands.health import health
from slotmesh.cli.commands.run import run
from slotmesh.cli.commands.status import status
from slotmesh.cli.commands.traffic import traffic
from slotmesh.version import VERSION

app = typer.Typer(
    name="slotmesh",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    # A defect shows as Python's own traceback, without the values of variables.
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
)
app.command()(run)
app.command()(call)
app.command()(status)
app.command()(traffic)
app.command()(apply)
app.command()(health)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"slotmesh {VERSION}")
        raise typer.Exit


@app.callback(epilog="Exit status: 0 done · 1 it failed, stderr says why · 2 wrong usage or input, nothing was sent.")
def slotmesh(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """slotmesh: a gRPC-native serving mesh.

    Start a mesh on this machine with `slotmesh run MODULE:NAME`, call it with `slotmesh call`, look at it with
    `slotmesh status`, change it with `slotmesh apply`, divide its calls with `slotmesh traffic`.
    """
