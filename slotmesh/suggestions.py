"""Names that were probably meant. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Collection
from typing import Final

_MAX_CHARS: Final = 256
"""Longer words are no names: the search takes time by their length."""


def did_you_mean(word: str, known: Collection[str]) -> str:
    """`; did you mean NAME?` for the known name that is closest to `word`; empty where none is close."""
    if len(word) > _MAX_CHARS:
        return ""
    close = difflib.get_close_matches(word, known, n=1)
    return f"; did you mean {close[0]}?" if close else ""
