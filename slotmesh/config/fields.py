"""The description of a settings field: what it expects, within which bounds, its placeholder and default.

Purpose: help texts and mistakes of `slotmesh.config` follow from the declaration of a field, and from nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from slotmesh.config.declaring import SettingField, is_choice


@dataclass(frozen=True, slots=True)
class FieldKind:
    """How a setting is written: what is expected, its placeholder in the help, its values as text, examples."""

    expects: str
    placeholder: str
    write: Callable[[Any], str] = str
    such_as: str = ""


class FlagOnly:
    """Marks a setting that only its flag can set: a descriptor's number means nothing to children of children."""


_KINDS = {
    bool: FieldKind("true or false", "BOOL"),
    int: FieldKind("a whole number", "N"),
    float: FieldKind("a number", "NUMBER"),
    Path: FieldKind("a path", "PATH"),
}


def kind_of(field: SettingField) -> FieldKind:
    """The kind that the field's type was annotated with, or that follows from its type."""
    for each in field.metadata:
        if isinstance(each, FieldKind):
            return each
    if is_choice(field.plain):
        choices = [str(each) for each in get_args(field.plain)]
        return FieldKind(f"one of {', '.join(choices)}", "{" + ",".join(choices) + "}")
    return _KINDS.get(field.plain, FieldKind("text", "TEXT"))


def expects(field: SettingField) -> str:
    """What the field takes, as `a duration > 0s such as 250ms, 30s or 2m`."""
    kind = kind_of(field)
    return f"{kind.expects}{_bounds(field)}" + (f" such as {kind.such_as}" if kind.such_as else "")


def is_flag_only(field: SettingField) -> bool:
    """Whether the setting cannot be set by environment or file."""
    return any(isinstance(each, FlagOnly) for each in field.metadata)


def default_of(field: SettingField) -> str:
    """What holds when nothing is given, as `default: 30s`."""
    if field.is_required:
        return "required"
    default = field.make_default()
    if default is None:
        return "default: none"
    if isinstance(default, bool):
        return f"default: {'yes' if default else 'no'}"
    return f"default: {kind_of(field).write(default)}"


def _bounds(field: SettingField) -> str:
    write, bounds = kind_of(field).write, field.bounds
    signs = ((">=", bounds.ge), (">", bounds.gt), ("<=", bounds.le), ("<", bounds.lt))
    found = [f"{sign} {write(bound)}" for sign, bound in signs if bound is not None]
    if bounds.min_length:
        found.append("that is not empty")
    return f" {' and '.join(found)}" if found else ""
