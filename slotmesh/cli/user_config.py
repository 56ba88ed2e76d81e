"""A handler's configuration as people type it: `KEY=VALUE`, checked before anything is started. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Final

from slotmesh.spec.model import JsonValue
from slotmesh.spec.rules import show

_JSON_BEGINS: Final = ("{", "[", '"')
"""A text that begins so is not meant as text, and its error would show far away."""


class BadConfig(ValueError):
    """The text is no setting; the message has the way out."""


def read_config(settings: Iterable[str]) -> dict[str, JsonValue]:
    """From `KEY=VALUE`, each key once. A value is JSON where it is JSON, else text.

    Raises:
        BadConfig: one of them is not so.
    """
    config: dict[str, JsonValue] = {}
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals or not key.strip():
            raise BadConfig(f"must be KEY=VALUE, as model=svc, is {setting!r}")
        if key in config:
            raise BadConfig(f"{key} is given twice: all values of one argument are a list, as '{key}=[1, 2]'")
        config[key] = _value(key, text)
    return config


def _value(key: str, text: str) -> JsonValue:
    try:
        value: JsonValue = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        if not text.lstrip().startswith(_JSON_BEGINS):
            return text
        why = "nested too deeply" if isinstance(error, RecursionError) else error
        raise BadConfig(
            f"{key}: {show(text)} begins as JSON and is none ({why}); keep the shell from changing it, as in"
            f" '{key}=[1, 2]', or make it a string: '{key}={json.dumps(show(text))}'"
        ) from None
    return value


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON number")
