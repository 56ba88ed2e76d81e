"""Compressed bodies: gzip and deflate, piece by piece. Pure.

Invariants: a step reads `STEP_BYTES` of the body at most, and gives `PIECE_BYTES` at most, however the body was
compressed, so that who calls this can count, and let others run, before the next one; what is cut off, or has something
behind its end, is refused.
"""

from __future__ import annotations

import zlib
from enum import Enum
from typing import Final

from ingress_service.core.problems import refusal

PIECE_BYTES: Final = 256 * 1024
"""Of one step, what it gives: less than a millisecond."""
STEP_BYTES: Final = 16 * 1024
"""Of one step, what it reads: blocks without a byte in them take 150 ns a byte."""
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


_OF_NAME: Final = {**{each.header: each for each in Coding}, b"x-gzip": Coding.GZIP}
_NAMES: Final = ", ".join(each.header.decode() for each in Coding)


def coding_of_request(header: bytes) -> Coding | None:
    """What `Content-Encoding` says; None: nothing was compressed. Raises RequestRefusal."""
    name = header.strip().lower()
    if not name or name == b"identity":
        return None
    if (found := _OF_NAME.get(name)) is None:
        raise refusal(415, f"Content-Encoding must be one of {_NAMES}", accept_encoding=_NAMES)
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
        self._body = memoryview(body)
        self._at = 0
        """How much of the body was given to `zlib`, which may keep the end of it as its unconsumed tail."""
        self._name = coding.header.decode()

    @property
    def is_done(self) -> bool:
        """Whether all was read."""
        return self._zlib.eof

    @property
    def read_bytes(self) -> int:
        """How much of the body was read up to now."""
        return self._at - len(self._zlib.unconsumed_tail)

    def next(self) -> bytes:
        """The next piece, of `PIECE_BYTES` at most; empty where what was read had no bytes. Raises RequestRefusal."""
        unpacker = self._zlib
        step: bytes | memoryview = unpacker.unconsumed_tail
        if not step:
            step = self._body[self._at : self._at + STEP_BYTES]
            self._at += len(step)
        try:
            piece = unpacker.decompress(step, PIECE_BYTES)
        except zlib.error:
            raise refusal(400, f"the body is no {self._name}") from None
        if unpacker.eof:
            if unpacker.unused_data or self._at < len(self._body):
                raise refusal(400, f"something is left behind the end of the {self._name}")
        elif not piece and not unpacker.unconsumed_tail and self._at == len(self._body):
            raise refusal(400, f"the {self._name} of the body was cut off")
        return piece


def deflated(coding: Coding, body: bytes) -> bytes:
    """The body, compressed."""
    packer = zlib.compressobj(LEVEL, zlib.DEFLATED, coding.window)
    return packer.compress(body) + packer.flush()
