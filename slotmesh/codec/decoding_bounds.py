"""How much JSON or msgpack is decoded at once where other calls wait meanwhile. Pure.

Purpose: decoding cannot be interrupted, and takes as long as there are values: lists and objects most of all, of which
a byte or two make one. Who decodes on an event loop what a client sent looks here first; what is refused here has a
way out, which who asks knows: tensors in binary, or a body that is passed on unread.
Invariants: values are counted in the text, before any is made. What is within the bounds is never refused: commas and
brackets inside of texts are no values, and are taken out where they would decide. Looking costs a few passes over
`MAX_DECODED_BYTES` at most, or a step for each of `MAX_DECODED_VALUES`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import msgspec

from slotmesh.codec.types.hooks import of_json

MAX_DECODED_BYTES: Final = 2 * 1024 * 1024
"""Of one text: 28 for each of 65,536 numbers, and some milliseconds for one long string."""
MAX_DECODED_VALUES: Final = 80_000
"""Elements of lists, entries of objects, lists and objects, all together: 10 to 20 ms."""
_BEGINNINGS: Final = (b",", b"[", b"{")
"""All values but the first have one of these before them, or begin with it."""


class TooMuchToDecode(ValueError):
    """The text is longer, or has more values, than may be decoded at once."""


def check_json(text: bytes) -> None:
    """Raises TooMuchToDecode."""
    _check_size(len(text))
    if _beginnings(text) <= MAX_DECODED_VALUES:
        return
    if b'"' not in text:
        raise TooMuchToDecode(_TOO_MANY)
    plain = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    if plain.count(b'"') > 4 * (MAX_DECODED_VALUES + 1) or _beginnings(_without_strings(plain)) > MAX_DECODED_VALUES:
        raise TooMuchToDecode(_TOO_MANY)


def check_msgpack(payload: bytes) -> None:
    """Raises TooMuchToDecode."""
    _check_size(len(payload))
    if len(payload) > MAX_DECODED_VALUES and _has_more_values(payload):
        raise TooMuchToDecode(_TOO_MANY)


_TOO_MANY: Final = f"at most {MAX_DECODED_VALUES:,} values: elements, lists, objects and their entries"


def _check_size(size: int) -> None:
    if size > MAX_DECODED_BYTES:
        raise TooMuchToDecode(f"at most {MAX_DECODED_BYTES:,} bytes, got {size:,}")


def _beginnings(text: bytes) -> int:
    return sum(map(text.count, _BEGINNINGS))


def _without_strings(plain: bytes) -> bytes:
    """A text without escapes, and now without what is between quotes. Quotes were counted: there are few."""
    return b" ".join(plain.split(b'"')[::2])


def _table() -> tuple[list[int], dict[int, tuple[int, int, bool]]]:
    """By the first byte of a value: its size up to the next one where that is always the same, else 0.

    And then, how to read it: bytes of its length or count; bytes of its type; whether the length is one of bytes.
    """
    sizes = [0] * 256
    sizes[0x00:0x80] = [1] * 0x80
    sizes[0xA0:0xC0] = range(1, 0x21)
    sizes[0xC0:0xC4] = [1] * 4
    sizes[0xCA:0xD4] = [5, 9, 2, 3, 5, 9, 2, 3, 5, 9]
    sizes[0xD4:0xD9] = [3, 4, 6, 10, 18]
    sizes[0xE0:0x100] = [1] * 0x20
    heads: dict[int, tuple[int, int, bool]] = {}
    for first, width in ((0xC4, 1), (0xC5, 2), (0xC6, 4), (0xD9, 1), (0xDA, 2), (0xDB, 4)):
        heads[first] = width, 0, True
    for first, width in ((0xC7, 1), (0xC8, 2), (0xC9, 4)):
        heads[first] = width, 1, True
    for first, width in ((0xDC, 2), (0xDD, 4), (0xDE, 2), (0xDF, 4)):
        heads[first] = width, 0, False
    return sizes, heads


_SIZES, _HEADS = _table()


def _has_more_values(payload: bytes) -> bool:
    """Walks from head to head. What is cut off ends it: the decoder refuses that there, too."""
    sizes, at, end = _SIZES, 0, len(payload)
    for _ in range(MAX_DECODED_VALUES):
        if at >= end:
            return False
        first = payload[at]
        if size := sizes[first]:
            at += size
        elif (head := _HEADS.get(first)) is None:
            at += 1
        else:
            width, more, is_sized = head
            count = int.from_bytes(payload[at + 1 : at + 1 + width], "big") if is_sized else 0
            at += 1 + width + more + count
    return at < end


# JSON -> values, in time that is proportional to its bytes.
#
# Purpose: msgspec reads nearly every number in some nanoseconds, but those at the ends of what a float can hold, as
# `1e-323` and `1e308`, in ten microseconds: of 4 MB of them it would take seconds. Payloads with many of these are
# decoded in two steps, which are slower for others: Python reads the numbers, then msgspec checks the values.
# Invariants: both ways give the same value, or the same error, but for a `Decimal` with more digits than a float has.

_SMALL: Final = 128
"""Bytes that hold too few numbers to matter beside the rest of a call."""
_BYTES_PER_COSTLY: Final = 512
"""For so many bytes, one number that costs much is let pass."""
_DIGITS_AS_ZEROS: Final = bytes.maketrans(b"E123456789", b"e000000000")
_LONG_EXPONENT: Final = b"e000"
"""An exponent of three digits, in a payload without its digits and signs."""


def json_decoder(wanted: Any) -> Callable[[bytes], Any]:
    """The function that decodes into `wanted`; what it raises is msgspec's.

    Raises:
        TypeError: `wanted` is nothing that JSON can become.
    """
    decode = msgspec.json.Decoder(wanted, dec_hook=of_json).decode

    def decode_any(payload: bytes) -> Any:
        if len(payload) <= _SMALL or not has_costly_numbers(payload):
            return decode(payload)
        return msgspec.convert(_decode_untyped(payload), wanted, dec_hook=of_json, str_keys=True)

    return decode_any


def has_costly_numbers(payload: bytes) -> bool:
    """Whether there may be more than a few numbers that msgspec takes long for."""
    text = bytes(payload)
    if (text.count(b"e") + text.count(b"E")) * _BYTES_PER_COSTLY <= len(text):
        return False
    plain = text.translate(_DIGITS_AS_ZEROS, b"+-")
    return plain.count(_LONG_EXPONENT) * _BYTES_PER_COSTLY > len(text)


def _float(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise msgspec.ValidationError("Number out of range")
    return number


_decode_untyped: Final = msgspec.json.Decoder(float_hook=_float).decode
