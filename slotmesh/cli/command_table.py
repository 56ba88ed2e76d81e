"""The commands by name, and what they have in common.

Invariant: a process loads the module of the command that it runs, and of no other. The help of all commands, completion
and suggestions need all of them (`slotmesh.cli.app`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Annotated, Final

import typer

from slotmesh.cli.credentials import connects
from slotmesh.cli.usage_errors import CommandGroup
from slotmesh.version import VERSION

COMMANDS: Final[Mapping[str, str]] = MappingProxyType(
    {
        name: f"slotmesh.cli.commands.{name}"
        for name in (
            *(
                "run",
                "call",
                "broadcast",
                "status",
                "top",
                "calls",
                "tap",
                "bench",
                "describe",
                "stubs",
                "logs",
                "events",
                "traffic",
            ),
            *("apply", "get", "scale", "drain", "forget", "delete", "history", "rollback"),
            *("rollout", "state", "certs", "token"),
            *("check", "health", "explain"),
        )
    }
)
"""The module of each command, in the order of the help. It has a function of this name, or a `Typer` with commands."""

_LOCAL: Final = frozenset({"explain"})
"""Commands that connect to nothing: they have no flags for certificates and tokens."""

_EPILOG: Final = (
    "Exit status: 0 done · 1 it failed, stderr says why · 2 wrong usage or input, nothing was sent"
    " · 3 it was done, but the mesh was not ready in time, or a rollout failed"
    " · 4 something that was looked at is wrong."
)


def command_line(names: Iterable[str]) -> typer.Typer:
    """The command line with these commands."""
    app = typer.Typer(
        name="slotmesh",
        cls=CommandGroup,
        no_args_is_help=True,
        rich_markup_mode="markdown",
        # A defect shows as Python's own traceback, without the values of variables.
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["--help", "-h"]},
    )
    for name in names:
        command = getattr(import_module(COMMANDS[name]), name)
        if isinstance(command, typer.Typer):
            app.add_typer(command)
        else:
            app.command()(command if name in _LOCAL else connects(command))
    app.callback(epilog=_EPILOG)(slotmesh)
    return app


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"slotmesh {VERSION}")
        raise typer.Exit


def slotmesh(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """slotmesh: a gRPC-native serving mesh.

    Start a mesh on this machine with `slotmesh run`, call it with `slotmesh call`, look at it with `slotmesh status`,
    `slotmesh top`, `slotmesh describe`, `slotmesh get`, `slotmesh logs` and `slotmesh events`, have it checked with
    `slotmesh check`, write the Python types of an endpoint with
    `slotmesh stubs`, change it with `slotmesh apply`, `slotmesh scale`, `slotmesh drain`, `slotmesh forget` and
    `slotmesh delete`, divide its calls with `slotmesh traffic`, see and undo changes with `slotmesh history` and
    `slotmesh rollback`, follow new versions with `slotmesh rollout`; `slotmesh token` makes tokens for who may call
    it, and `slotmesh explain` explains failures. What one of them prints as a name, as `backend/NAME`, the others take.
    """
