"""What is wrong with an option or argument, in the words of this command line.

Invariant: no class name, no word of the libraries that read parameters, and no Python notation reaches the user.
Owner: `CommandGroup` is the group of all commands (`slotmesh/cli/command_table.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import typer
from typer.core import TyperGroup

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
            error.message = "a number that is given here must be 0 or more"
        raise


def _message(error: typer.BadParameter) -> str:
    errors = getattr(error.__cause__, "errors", None)
    details: list[Mapping[str, Any]] = errors() if callable(errors) else []
    known = [own_words(it["type"], it["input"], it.get("ctx", {})) for it in details]
    return "; ".join(known) if known and all(known) else error.message.removeprefix(_PREFIX)


def own_words(kind: str, given: object, bounds: Mapping[str, Any]) -> str:
    """The message for a known kind of error; otherwise empty."""
    words = _KINDS.get(kind)
    return f"{words.format_map(bounds)}, is {given}" if words else ""
