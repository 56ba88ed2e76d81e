"""The name of an endpoint as requests have it: bounded before anything looks at it, logs it or repeats it. Pure.

Invariants: every server that clients reach refuses the same names, in the same words.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection
from typing import Final

from slotmesh.errors import Failure, bad_field

MAX_ENDPOINT_CHARS: Final = 1024
"""More than the name of any endpoint has."""


def endpoint_mistake(name: str, field: str = "endpoint") -> Failure | None:
    """What is wrong with the name of an endpoint that a request has to have in this field."""
    return overlong_endpoint(name, field) if name else bad_field(field, "is required")


def overlong_endpoint(name: str, field: str = "endpoint") -> Failure | None:
    """The same where the request may leave it out."""
    if len(name) <= MAX_ENDPOINT_CHARS:
        return None
    return bad_field(field, f"at most {MAX_ENDPOINT_CHARS} characters, got {len(name)}")


# The name of a method as requests have it: bounded before anything keeps or repeats it. Pure.

MAX_METHOD_CHARS: Final = 256
"""More than the name of any method has."""


# Names that were probably meant. Pure.

_MAX_CHARS: Final = 256
"""Longer words are no names: the search takes time by their length."""
_MOST_NAMED: Final = 3


def did_you_mean(word: str, known: Collection[str]) -> str:
    """`; did you mean NAME?` for the known names that are closest to `word`, alike close; empty where none is close."""
    if len(word) > _MAX_CHARS:
        return ""
    close = difflib.get_close_matches(word, known, n=max(1, len(known)))
    if not close:
        return ""
    closest = _closeness(word, close[0])
    *others, last = sorted({it for it in close if _closeness(word, it) == closest})[:_MOST_NAMED]
    return f"; did you mean {', '.join(others)}{' or ' if others else ''}{last}?"


def _closeness(word: str, name: str) -> float:
    return difflib.SequenceMatcher(None, name, word).ratio()


# Texts of others as lines of a log and terminals show them. Pure.
#
# Invariants: no character steers a terminal, or begins a line of its own: what is not printable is shown as Python
# writes
# it in a literal, as `\x1b`.

LINES: Final = "\n\t"
"""What is kept of a text that may have several lines."""


def printable_text(text: str, keeps: str = "") -> str:
    """The text with escapes in place of what is not printable, but for these characters."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() or each in keeps else _escape(each) for each in text)


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


# Texts of users' code, as frames carry them. Pure.


def sendable_text(text: str, most: int) -> str:
    """The text as a frame carries it: texts of users' code have any length, and characters that UTF-8 cannot encode."""
    return text[:most].encode("utf-8", "replace").decode()
