"""Bounds on JSON and msgpack that is decoded on an event loop, while other calls wait. Pure.

Purpose: decoding cannot be interrupted, and takes time in proportion to the number of values: lists and objects most of
all, which take a byte or two each. A server checks the text that a client sent before it decodes it on an event loop;
the caller of these checks offers the alternative: tensors in binary, or a body that is passed on unread.
msgspec parses nearly every number in nanoseconds, but those near the limits of a float, such as `1e-323` and `1e308`,
in ten microseconds: 4 MB of them would take seconds. `json_decoder` decodes payloads with many of these in two steps,
which are slower for others: Python parses the numbers, then msgspec validates the values.
Invariants: values are counted in the text, before any is created. A text within the bounds is never refused: commas and
brackets inside of strings are no values, and are removed before counting if they would matter. A check takes a few
passes over at most `MAX_DECODED_BYTES`, or a step for each of `MAX_DECODED_VALUES`. Both ways of decoding JSON give the
same value or the same error, except for a `Decimal` with more digits than a float has.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import msgspec

from slotmesh.codec.types.dataclass_defaults import with_defaults
from slotmesh.codec.types.hooks import of_json

MAX_DECODED_BYTES: Final = 2 * 1024 * 1024
"""Of one text. 65,536 numbers have 28 bytes each; one long string takes some milliseconds."""
MAX_DECODED_VALUES: Final = 80_000
"""Elements of lists, entries of objects, lists and objects together: 10 to 20 ms."""
_BEGINNINGS: Final = (b",", b"[", b"{")
"""Every value but the first follows one of these bytes, or begins with it."""


class TooMuchToDecode(ValueError):
    """The text is longer, or has more values, than may be decoded in one step."""


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
    """The text, which has no escapes, without its quoted strings. The caller has counted the quotes: there are few."""
    return b" ".join(plain.split(b'"')[::2])


def _table() -> tuple[list[int], dict[int, tuple[int, int, bool]]]:
    """By the first byte of a value: its size up to the next one if that is constant, else 0.

    Then, how to read it: the bytes of its length or count; the bytes of its type; whether the length counts bytes.
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
    """Walks from head to head. Truncated text ends the walk: the decoder refuses it there, too."""
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


_SMALL: Final = 128
"""Payloads up to this size cannot contain enough numbers to matter."""
_BYTES_PER_COSTLY: Final = 512
"""One slow number in this many bytes is accepted."""
_DIGITS_AS_ZEROS: Final = bytes.maketrans(b"E123456789", b"e000000000")
_LONG_EXPONENT: Final = b"e000"
"""An exponent of three digits, after digits were replaced by zeros and signs removed."""


def json_decoder(wanted: Any) -> Callable[[bytes], Any]:
    """The function that decodes into `wanted`; what it raises is msgspec's.

    Raises:
        TypeError: JSON cannot be decoded into `wanted`.
    """
    decode = msgspec.json.Decoder(wanted, dec_hook=of_json).decode

    def decode_any(payload: bytes) -> Any:
        if len(payload) <= _SMALL or not has_costly_numbers(payload):
            return decode(payload)
        return msgspec.convert(_decode_untyped(payload), wanted, dec_hook=of_json, str_keys=True)

    return with_defaults(decode_any, wanted)


def has_costly_numbers(payload: bytes) -> bool:
    """Whether the payload may contain more than a few numbers that msgspec parses slowly."""
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
