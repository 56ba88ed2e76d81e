r"""Texts of others as lines of a log and terminals show them. Pure.

Invariants: no character steers a terminal, or begins a line of its own: what is not printable is shown as Python writes
it in a literal, as `\x1b`.
"""

from __future__ import annotations

from typing import Final

LINES: Final = "\n\t"
"""What is kept of a text that may have several lines."""


def printable_text(text: str, keeps: str = "") -> str:
    """The text with escapes in place of what is not printable, but for these characters."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() or each in keeps else _escape(each) for each in text)


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
