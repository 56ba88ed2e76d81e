"""Names and texts that peers and users' code choose: bounded before they are used, logged or repeated. Pure.

Invariants: every server that clients reach refuses the same endpoint names, in the same words. No text controls a
terminal or starts a line of its own in a log: characters that are not printable are escaped as in a Python literal.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection
from typing import Final

from slotmesh.errors import Failure, bad_field

_ZONE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
MAX_ENDPOINT_CHARS: Final = 1024
"""Longer than the name of any endpoint."""


def is_utf8(text: str) -> bool:
    """Whether UTF-8 can carry it: a Python text may hold halves of characters (surrogates)."""
    try:
        return text.isascii() or bool(text.encode())
    except UnicodeEncodeError:
        return False


def is_zone(text: str) -> bool:
    """Whether a zone of replicas and routers may have this name."""
    return _ZONE.fullmatch(text) is not None


def endpoint_failure(name: str, field: str = "endpoint") -> Failure | None:
    """The failure of a request whose field must be the name of an endpoint."""
    return overlong_endpoint(name, field) if name else bad_field(field, "is required")


def overlong_endpoint(name: str, field: str = "endpoint") -> Failure | None:
    """The same for a request that may omit the name."""
    if len(name) <= MAX_ENDPOINT_CHARS:
        return None
    return bad_field(field, f"at most {MAX_ENDPOINT_CHARS} characters, got {len(name)}")


MAX_METHOD_CHARS: Final = 256
"""Longer than the name of any method."""


_MAX_CHARS: Final = 256
"""Longer words are no names: the search takes time by their length."""
_MOST_NAMED: Final = 3


def _without_dashes(name: str) -> str:
    return name.lstrip("-")


def did_you_mean(
    word: str, known: Collection[str], bare_of: Callable[[str], str] = _without_dashes, cutoff: float = 0.6
) -> str:
    """`; did you mean NAME?` for the known names that are closest to `word`, equally close; empty if none is close.

    `bare_of`: a name without what makes no two of them alike, as the dashes before flags. `cutoff`: the least likeness.
    """
    if len(word) > _MAX_CHARS:
        return ""
    bare = {it: bare_of(it) for it in known}
    word = bare_of(word)
    close = difflib.get_close_matches(word, bare.values(), n=max(1, len(bare)), cutoff=cutoff)
    if not close:
        return ""
    closest = _closeness(word, close[0])
    *others, last = sorted({it for it in known if _closeness(word, bare[it]) == closest})[:_MOST_NAMED]
    return f"; did you mean {', '.join(others)}{' or ' if others else ''}{last}?"


def _closeness(word: str, name: str) -> float:
    return difflib.SequenceMatcher(None, name, word).ratio()


LINES: Final = "\n\t"
"""Kept in a text that may have several lines."""


def printable_text(text: str, keeps: str = "") -> str:
    """The text with escapes in place of what is not printable, but for these characters."""
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() or each in keeps else each.encode("unicode_escape").decode("ascii") for each in text
    )


def sendable_text(text: str, most: int) -> str:
    """The text as a frame carries it: texts of users' code may be long, with characters that UTF-8 cannot encode."""
    return text[:most].encode("utf-8", "replace").decode()
