"""The commands by name, and what they have in common."""

from __future__ import annotations

from typing import Annotated

import typer

from slotmesh.cli.commands.apply import apply
from slotmesh.cli.commands.bench import bench
from slotmesh.cli.commands.call import call
from slotmesh.cli.commands.calls import calls
from slotmesh.cli.commands.certs import certs
from slotmesh.cli.commands.check import check
from slotmesh.cli.commands.delete import delete
from slotmesh.cli.commands.describe import describe
from slotmesh.cli.commands.drain import drain
from slotmesh.cli.commands.events import events
from slotmesh.cli.commands.forget import forget
from slotmesh.cli.commands.get import get
from slotmesh.cli.commands.health import health
from slotmesh.cli.commands.history import history
from slotmesh.cli.commands.logs import logs
from slotmesh.cli.commands.rollback import rollback
from slotmesh.cli.commands.rollout import rollout
from slotmesh.cli.commands.run import run
from slotmesh.cli.commands.scale import scale
from slotmesh.cli.commands.state import state
from slotmesh.cli.commands.status import status
from slotmesh.cli.commands.tap import tap
from slotmesh.cli.commands.token import token
from slotmesh.cli.commands.top import top
from slotmesh.cli.commands.traffic import traffic
from slotmesh.cli.credentials import connects
from slotmesh.cli.mistakes import CommandGroup
from slotmesh.version import VERSION

app = typer.Typer(
    name="slotmesh",
    cls=CommandGroup,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    # A defect shows as Python's own traceback, without the values of variables.
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
)
app.command()(connects(run))
app.command()(connects(call))
app.command()(connects(status))
app.command()(connects(top))
app.command()(connects(calls))
app.command()(connects(tap))
app.command()(connects(bench))
app.command()(connects(describe))
app.command()(connects(logs))
app.command()(connects(events))
app.command()(connects(traffic))
app.command()(connects(apply))
app.command()(connects(get))
app.command()(connects(scale))
app.command()(connects(drain))
app.command()(connects(forget))
app.command()(connects(delete))
app.command()(connects(history))
app.command()(connects(rollback))
app.add_typer(rollout)
app.add_typer(state)
app.add_typer(certs)
app.add_typer(token)
app.command()(connects(check))
app.command()(connects(health))


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"slotmesh {VERSION}")
        raise typer.Exit


@app.callback(
    epilog="Exit status: 0 done · 1 it failed, stderr says why · 2 wrong usage or input, nothing was sent"
    " · 3 it was done, but the mesh was not ready in time · 4 something that was looked at is wrong."
)
def slotmesh(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """slotmesh: a gRPC-native serving mesh.

    Start a mesh on this machine with `slotmesh run`, call it with `slotmesh call`, look at it with `slotmesh status`,
    `slotmesh top`, `slotmesh describe`, `slotmesh get`, `slotmesh logs` and `slotmesh events`, have it checked with
    `slotmesh check`, change it with `slotmesh apply`, `slotmesh scale`, `slotmesh drain`, `slotmesh forget` and
    `slotmesh delete`, divide its calls with `slotmesh traffic`, see and undo changes with `slotmesh history` and
    `slotmesh rollback`, follow new versions with `slotmesh rollout`; `slotmesh token` makes tokens for who may call
    it. What one of them prints as a name, as `backend/NAME`, the others take.
    """
