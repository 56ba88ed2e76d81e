"""The description of a settings field: what it expects, within which bounds, its placeholder and default.

Purpose: help texts and mistakes of `slotmesh.config` follow from the declaration of a field, and from nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import annotated_types
from pydantic.fields import FieldInfo


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


def kind_of(field: FieldInfo) -> FieldKind:
    """The kind that the field's type was annotated with, or that follows from its type."""
    for each in _metadata(field):
        if isinstance(each, FieldKind):
            return each
    plain = plain_type(field)
    if get_origin(plain) is Literal:
        choices = [str(each) for each in get_args(plain)]
        return FieldKind(f"one of {', '.join(choices)}", "{" + ",".join(choices) + "}")
    return _KINDS.get(plain, FieldKind("text", "TEXT"))


def expects(field: FieldInfo) -> str:
    """What the field takes, as `a duration > 0s such as 250ms, 30s or 2m`."""
    kind = kind_of(field)
    return f"{kind.expects}{_bounds(field)}" + (f" such as {kind.such_as}" if kind.such_as else "")


def is_flag_only(field: FieldInfo) -> bool:
    """Whether the setting cannot be set by environment or file."""
    return any(isinstance(each, FlagOnly) for each in _metadata(field))


def default_of(field: FieldInfo) -> str:
    """What holds when nothing is given, as `default: 30s`."""
    if field.is_required():
        return "required"
    default = field.get_default(call_default_factory=True)
    if default is None:
        return "default: none"
    if isinstance(default, bool):
        return f"default: {'yes' if default else 'no'}"
    return f"default: {kind_of(field).write(default)}"


def plain_type(field: FieldInfo) -> Any:
    """The type of a field, without `| None` and annotations."""
    annotation: Any = field.annotation
    if get_origin(annotation) in {Union, UnionType}:
        (annotation,) = (each for each in get_args(annotation) if each is not type(None))
    return get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation


def _metadata(field: FieldInfo) -> list[Any]:
    """The annotations of a field, also inside of `| None`."""
    found = list(field.metadata)
    for each in get_args(field.annotation):
        if get_origin(each) is Annotated:
            found += get_args(each)[1:]
    return found


def _bounds(field: FieldInfo) -> str:
    write = kind_of(field).write
    found: list[str] = []
    for each in _metadata(field):
        match each:
            case annotated_types.Ge(ge=bound):
                found.append(f">= {write(bound)}")
            case annotated_types.Gt(gt=bound):
                found.append(f"> {write(bound)}")
            case annotated_types.Le(le=bound):
                found.append(f"<= {write(bound)}")
            case annotated_types.Lt(lt=bound):
                found.append(f"< {write(bound)}")
            case annotated_types.MinLen(min_length=1):
                found.append("that is not empty")
            case _:
                pass  # a validator: its message has what it expects
    return f" {' and '.join(found)}" if found else ""
