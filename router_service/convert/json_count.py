"""How many values a JSON text has, counted before it is decoded.

Invariants: goes through the text in steps of `STEP_BYTES`, each by passes that are about as quick as copying it; ends
at the bound. Of text that is no JSON the number says nothing: its decoder refuses it.
Pure.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Final

STEP_BYTES: Final = 128 * 1024
_ESCAPE: Final = b"\\"
_STRING: Final = b"0"
"""Stands for a string in what is left outside of strings."""


def values_in(text: bytes, most: int) -> Generator[None, None, int]:
    """The values of the text, keys apart; where there are more than `most`, some number above that. In steps."""
    values, in_string, cut, last = 1, False, b"", b""
    for at in range(0, len(text), STEP_BYTES):
        if at:
            yield
        piece = cut + text[at : at + STEP_BYTES]
        # An escape may lie on both sides of the cut.
        cut = _ESCAPE if (len(piece) - len(piece.rstrip(_ESCAPE))) % 2 else b""
        piece = piece[: len(piece) - len(cut)]
        # An escaped quote ends no string. Both characters go, so that quotes are where strings begin and end.
        parts = piece.replace(_ESCAPE * 2, b"").replace(b'\\"', b"").split(b'"')
        outside = (_STRING if in_string else b"") + _STRING.join(parts[in_string::2]).translate(None, b" \t\r\n")
        in_string ^= len(parts) % 2 == 0
        # Each value but the first comes after a comma, or is the first in its container.
        values += outside.count(b",") + outside.count(b"[") + outside.count(b"{")
        both = last + outside  # `[]` may lie on both sides, too
        values -= both.count(b"[]") + both.count(b"{}")
        last = outside[-1:] or last
        if values > most:
            break
    return values
