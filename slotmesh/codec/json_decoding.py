"""JSON -> values, in time that is proportional to its bytes.

Purpose: msgspec reads nearly every number in some nanoseconds, but those at the ends of what a float can hold, as
`1e-323` and `1e308`, in ten microseconds: of 4 MB of them it would take seconds. Payloads with many of these are
decoded in two steps, which are slower for others: Python reads the numbers, then msgspec checks the values.
Invariants: both ways give the same value, or the same error, but for a `Decimal` with more digits than a float has.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import msgspec

from slotmesh.codec.hooks import of_json

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
