"""The arguments of a call as people type them: JSON, checked before anything is sent. Pure."""

from __future__ import annotations

import json
from typing import Final

NONE: Final = b"[]"
"""A call without arguments."""

_KINDS: Final = {type(None): "null", bool: "a boolean", str: "a string"}
_SHOWN: Final = 60
"""Characters of the input around a mistake."""


class BadJson(ValueError):
    """The text is not what a call takes; the message points at the place."""


def read_arguments(text: str) -> bytes:
    """The payload of a call: a JSON list of positional arguments, or a JSON object of named ones.

    It is sent as it was typed, so that no number loses digits.
    """
    if not text.strip():
        return NONE
    try:
        value = json.loads(text, parse_constant=_refuse)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise BadJson(f"the arguments are not JSON: {error.msg} at {where}\n{_point(text, error.pos)}") from None
    except (ValueError, RecursionError) as error:
        raise BadJson(f"the arguments are not JSON: {error}") from None
    if not isinstance(value, list | dict):
        kind = _KINDS.get(type(value), "a number")
        raise BadJson(
            f"the arguments must be a JSON list (positional) or object (named), not {kind}; try [{text.strip()}]"
        )
    return text.encode()


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON number")


def _point(text: str, position: int) -> str:
    """The line of the mistake, or the part of it around the mistake, with a caret below."""
    start = text.rfind("\n", 0, position) + 1
    end = text.find("\n", position)
    line = text[start : end if end >= 0 else len(text)]
    column = position - start
    first = max(0, column - _SHOWN // 2)
    return f"  {line[first : first + _SHOWN]}\n  {' ' * (column - first)}^"
