"""Compressed bodies: gzip and deflate, piece by piece. Pure.

Invariants: a piece never has more than it may, however well the body was compressed, so that who calls this can count
before the next one; what is cut off, or has something behind its end, is refused.
"""

from __future__ import annotations

import zlib
from enum import Enum
from typing import Final

from ingress_service.core.problems import refusal

PIECE_BYTES: Final = 256 * 1024
"""Of one step: less than a millisecond."""
LEVEL: Final = 1
_MOST_CODINGS: Final = 16


class Coding(Enum):
    """As `Content-Encoding` names it, and the window's size as `zlib` wants it."""

    GZIP = b"gzip", 31
    DEFLATE = b"deflate", 15

    @property
    def header(self) -> bytes:
        """Its name."""
        return self.value[0]

    @property
    def window(self) -> int:
        """For `zlib`."""
        return self.value[1]


_OF_NAME: Final = {each.header: each for each in Coding}


def coding_of_request(header: bytes) -> Coding | None:
    """What `Content-Encoding` says; None: nothing was compressed. Raises RequestRefusal."""
    name = header.strip().lower()
    if not name or name == b"identity":
        return None
    if (found := _OF_NAME.get(name)) is None:
        raise refusal(415, "Content-Encoding must be one of gzip, deflate")
    return found


def coding_of_answer(header: bytes) -> Coding | None:
    """The first that `Accept-Encoding` names and that there is; None: the answer goes as it is."""
    for part in header.lower().split(b",", _MOST_CODINGS)[:_MOST_CODINGS]:
        name, _, quality = part.partition(b";")
        found = _OF_NAME.get(name.strip())
        if found is not None and quality.strip().replace(b" ", b"").rstrip(b"0.") != b"q=":
            return found
    return None


class Inflater:
    """Takes one body apart."""

    def __init__(self, coding: Coding, body: bytes) -> None:
        self._zlib = zlib.decompressobj(coding.window)
        self._left = body
        self._name = coding.header.decode()

    @property
    def is_done(self) -> bool:
        """Whether all was read."""
        return self._zlib.eof

    def next(self) -> bytes:
        """The next piece, of `PIECE_BYTES` at most. Raises RequestRefusal."""
        try:
            piece = self._zlib.decompress(self._left, PIECE_BYTES)
        except zlib.error:
            raise refusal(400, f"the body is no {self._name}") from None
        self._left = self._zlib.unconsumed_tail
        if self._zlib.eof:
            if self._zlib.unused_data:
                raise refusal(400, f"something is left behind the end of the {self._name}")
        elif not self._left and not piece:
            raise refusal(400, f"the {self._name} of the body was cut off")
        return piece


def deflated(coding: Coding, body: bytes) -> bytes:
    """The body, compressed."""
    packer = zlib.compressobj(LEVEL, zlib.DEFLATED, coding.window)
    return packer.compress(body) + packer.flush()
