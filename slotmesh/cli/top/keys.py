"""What a terminal sends when keys are pressed, as names of keys. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

_SEQUENCES: Final = {
    "\x1b[A": "up",
    "\x1b[B": "down",
    "\x1b[C": "right",
    "\x1b[D": "left",
    "\x1bOA": "up",
    "\x1bOB": "down",
    "\x1bOC": "right",
    "\x1bOD": "left",
    "\x1b[5~": "pageup",
    "\x1b[6~": "pagedown",
    "\x1b[H": "home",
    "\x1b[F": "end",
    "\x1bOH": "home",
    "\x1bOF": "end",
    "\x1b[1~": "home",
    "\x1b[4~": "end",
    "\x1b[Z": "backtab",
    "\t": "tab",
    "\r": "enter",
    "\n": "enter",
    "\x7f": "backspace",
    "\x08": "backspace",
    "\x03": "q",
    "\x04": "q",
}
_ESCAPE: Final = "\x1b"


def keys_of(sent: bytes) -> Iterator[str]:
    """The keys of one read: a printable character, or a name as `up`. What is not known is left out."""
    text = sent.decode(errors="ignore")
    at = 0
    while at < len(text):
        size = _size_of(text, at)
        piece = text[at : at + size]
        at += size
        if piece == _ESCAPE:
            yield "escape"
        elif (key := _SEQUENCES.get(piece)) is not None:
            yield key
        elif len(piece) == 1 and piece.isprintable():
            yield piece


def _size_of(text: str, at: int) -> int:
    """How many characters one key has sent: an escape sequence ends with a letter or `~`."""
    if text[at] != _ESCAPE or at + 1 >= len(text) or text[at + 1] not in "[O":
        return 1
    end = at + 2
    while end < len(text) and not (text[end].isalpha() or text[end] == "~"):
        end += 1
    return min(end + 1, len(text)) - at
