"""The forms in which commands print what they show: `--output table|json|yaml|name`.

Invariants: a command says once what it shows, and has all forms of it; JSON and YAML are the same document; a name is
one that other commands take, a line each.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, TextIO

import typer

from slotmesh.printable_text import printable_text


class OutputForm(StrEnum):
    """How something is printed."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"
    NAME = "name"


Output = Annotated[
    OutputForm,
    typer.Option(
        "--output", "-o", help="The form: for people, for programs, or only the names that other commands take."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="The same as `--output json`.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Printable:
    """What a command shows. Only the form that is asked for is made."""

    table: Callable[[TextIO], None]
    document: Callable[[], Mapping[str, Any]]
    """Plain values, with times in ISO 8601."""
    names: Callable[[], Iterable[str]]
    """As `backend/NAME`."""

    def write(self, form: OutputForm, out: TextIO | None = None) -> None:
        """Writes it, to stdout unless given."""
        out = out or sys.stdout
        match form:
            case OutputForm.TABLE:
                self.table(out)
            case OutputForm.JSON:
                out.write(json.dumps(self.document(), indent=2) + "\n")
            case OutputForm.YAML:
                out.write(as_yaml(self.document()))
            case OutputForm.NAME:
                out.writelines(f"{printable_text(name)}\n" for name in self.names())


def as_yaml(document: Mapping[str, Any], *, explicit_start: bool = False) -> str:
    """The document as YAML; with `explicit_start` it may follow another one."""
    import yaml  # noqa: PLC0415 - for who asks for YAML

    text: str = yaml.safe_dump(document, sort_keys=False, allow_unicode=True, explicit_start=explicit_start)
    return text


def form_of(output: OutputForm, as_json: bool) -> OutputForm:
    """What was asked for with `--output` and `--json`."""
    if not as_json or output is OutputForm.JSON:
        return OutputForm.JSON if as_json else output
    if output is not OutputForm.TABLE:
        raise typer.BadParameter(f"contradicts --output {output}: give one of them", param_hint="--json")
    return OutputForm.JSON
