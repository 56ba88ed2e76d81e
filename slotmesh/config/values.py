"""Parses values of settings from text or Python objects, and checks their bounds.

Invariants: pure; an unreadable value raises ValueError without a text, as the caller states the expected form.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import EnumType
from math import isfinite
from os import PathLike
from pathlib import Path
from typing import Any, Final, get_args

_TRUE: Final = frozenset({"1", "on", "t", "true", "y", "yes"})
_FALSE: Final = frozenset({"0", "off", "f", "false", "n", "no"})


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldBounds:
    """The bounds of a value; None: no bound."""

    ge: Any = None
    gt: Any = None
    le: Any = None
    lt: Any = None
    min_length: int | None = None
    max_length: int | None = None

    @property
    def are_some(self) -> bool:
        """Whether a value may be too small or too large."""
        return any(each is not None for each in (self.ge, self.gt, self.le, self.lt))

    def checked(self, value: Any) -> Any:
        """The value. Raises ValueError."""
        # Written so that NaN is out of bounds.
        is_within = (
            (self.ge is None or value >= self.ge)
            and (self.gt is None or value > self.gt)
            and (self.le is None or value <= self.le)
            and (self.lt is None or value < self.lt)
            and (self.min_length is None or len(value) >= self.min_length)
        )
        if not is_within:
            raise ValueError
        if self.max_length is not None and len(value) > self.max_length:
            raise ValueError(f"at most {self.max_length} characters, got {len(value)}")
        return value


def read_value(kind: Any, value: Any) -> Any:
    """A value of a plain type. Raises ValueError."""
    if choices := get_args(kind):
        return _of(value in choices, value)
    if kind is bool:
        return _read_bool(value)
    if kind is int:
        return _read_int(value)
    if kind is float:
        return _read_float(value)
    if kind is Path:
        return Path(_of(isinstance(value, str | PathLike), value))
    if kind is str:
        return _of(isinstance(value, str), value)
    if kind is timedelta:
        return value if isinstance(value, timedelta) else timedelta(seconds=_read_seconds(value))
    if isinstance(kind, EnumType):
        return _made(kind, _of(isinstance(value, str), value))
    raise TypeError(f"settings have no fields of type {kind!r}")


def _of(is_sound: bool, value: Any) -> Any:
    if not is_sound:
        raise ValueError
    return value


def _read_bool(value: Any) -> bool:
    text = str(value).lower() if isinstance(value, str | int) else ""
    if text not in _TRUE | _FALSE:
        raise ValueError
    return text in _TRUE


def _read_int(value: Any) -> int:
    if isinstance(value, str):
        whole, point, fraction = value.strip().partition(".")
        _of(not point or (fraction != "" and not fraction.strip("0")), value)
        return int(_made(int, whole))
    return int(_of(isinstance(value, int) or (isinstance(value, float) and value.is_integer()), value))


def _read_float(value: Any) -> float:
    if isinstance(value, str):
        return float(_made(float, value.strip()))
    return float(_of(isinstance(value, int | float), value))


def _read_seconds(value: Any) -> float:
    return float(_of(isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value), value))


def _made(kind: Any, text: str) -> Any:
    _of(text.isascii(), text)  # Python would accept the digits of all scripts
    try:
        return kind(text)
    except ValueError:
        raise ValueError from None  # Python's message is not for users
