"""The commands by name, and what they have in common, such as how errors of options and arguments read.

Invariants: a process loads the module of the command that it runs, and of no other. The help of all commands,
completion and suggestions need all of them (`slotmesh.cli.app`). No class name, no word of the libraries that read
parameters, and no Python notation reaches the user.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from types import MappingProxyType
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

from slotmesh.cli.credentials import connects
from slotmesh.version import VERSION

COMMANDS: Final[Mapping[str, str]] = MappingProxyType(
    {
        name: f"slotmesh.cli.commands.{name}"
        for name in (
            *("run", "call", "broadcast", "status", "top", "calls", "tap", "bench"),
            *("describe", "stubs", "logs", "events", "traffic"),
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


_KINDS: Final = {
    "int_parsing": "must be a whole number",
    "int_parsing_size": "must be a whole number of fewer digits",
    "int_from_float": "must be a whole number",
    "float_parsing": "must be a number",
    "finite_number": "must be a finite number",
    "bool_parsing": "must be true or false",
    "greater_than_equal": "must be at least {ge:g}",
    "greater_than": "must be more than {gt:g}",
    "less_than_equal": "must be at most {le:g}",
    "less_than": "must be less than {lt:g}",
}
"""By the error type of the library that reads parameters."""
_UsageError: Final[type[Any]] = typer.BadParameter.__mro__[1]
"""Also of unknown options; the library exports no name for it."""
_NEGATIVE: Final = re.compile(r"-\d+(\.\d+)?")
"""What looks like an option, and was meant as an argument."""
_NUMBERS: Final = ("N", "REVISION")
"""How help shows arguments that are numbers."""
_PREFIX: Final = "Value error, "


class CommandGroup(TyperGroup):
    """Commands with usage errors in the project's own words."""

    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        with _in_own_words():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: Any) -> Any:
        with _in_own_words():
            return super().invoke(ctx)


@contextmanager
def _in_own_words() -> Iterator[None]:
    try:
        yield
    except typer.BadParameter as error:
        error.message = _message(error)
        envvar = getattr(error.param, "envvar", None)
        if error.param is not None and error.param_hint is None and isinstance(envvar, list | tuple):
            options = " / ".join(f"'{option}'" for option in error.param.opts)
            error.param_hint = f"{options} (or {', '.join(envvar)})"
        raise
    except _UsageError as error:
        if _NEGATIVE.fullmatch(getattr(error, "option_name", "")):
            raise _negative(error.ctx) from None
        raise


def _negative(context: Any) -> typer.BadParameter:
    """The error for a number which the library took for an option: it names the argument that is a number."""
    numbers = [it for it in context.command.params if it.param_type_name == "argument" and it.metavar in _NUMBERS]
    if not numbers:
        return typer.BadParameter("no argument here begins with - and a digit", ctx=context)
    return typer.BadParameter("must be at least 0", ctx=context, param=numbers[0])


def _message(error: typer.BadParameter) -> str:
    errors = getattr(error.__cause__, "errors", None)
    details: list[Mapping[str, Any]] = errors() if callable(errors) else []
    known = [own_words(it["type"], it["input"], it.get("ctx", {})) for it in details]
    return "; ".join(known) if known and all(known) else error.message.removeprefix(_PREFIX)


def own_words(kind: str, given: object, bounds: Mapping[str, Any]) -> str:
    """The message for a known kind of error; otherwise empty."""
    words = _KINDS.get(kind)
    return f"{words.format_map(bounds)}, is {'empty' if given == '' else given}" if words else ""
