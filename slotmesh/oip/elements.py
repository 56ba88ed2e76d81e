"""Elements said one by one <-> their bytes. Pure, and without numpy: who calls this has counted them."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Collection
from math import isinf
from typing import Any, Final

from slotmesh.oip.checks import RequestMistake
from slotmesh.oip.datatypes import FIXED

BOOL = "BOOL"
_NOT_BOOL: Final = "elements of BOOL are true or false"


def packed(field: str, datatype: str, values: Collection[Any]) -> bytes:
    """The elements of a datatype of fixed size that has a typed field, little-endian.

    Raises:
        RequestMistake: one of them is not a value of the datatype; it names the `field`.
    """
    kind = FIXED[datatype]
    try:
        elements: Any = array(kind.code, values)
        if kind.code == "f":
            _check_range_of_float(field, datatype, values, elements)
    except OverflowError:
        if kind.code in "fd":
            raise RequestMistake(field, f"an element is too large for {datatype}") from None
        if datatype == BOOL:
            raise RequestMistake(field, _NOT_BOOL) from None
        bits = 8 * kind.size
        low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if kind.code.islower() else (0, (1 << bits) - 1)
        raise RequestMistake(field, f"elements of {datatype} are from {low} to {high}") from None
    except TypeError:
        raise RequestMistake(field, f"elements of {datatype} are numbers, and some are not") from None
    if datatype == BOOL and elements and max(elements) > 1:
        raise RequestMistake(field, _NOT_BOOL)
    if sys.byteorder == "big":
        elements.byteswap()
    data: bytes = elements.tobytes()
    return data


def _check_range_of_float(field: str, datatype: str, values: Collection[Any], elements: array[float]) -> None:
    """`array` rounds a number that is too large to infinity; only an infinity that was sent may stay one."""
    if sum(map(isinf, elements)) != sum(map(isinf, values)):
        raise RequestMistake(field, f"an element is too large for {datatype}")


def unpacked(datatype: str, data: bytes | memoryview) -> list[Any]:
    """The elements as numbers, or as booleans; of datatypes that have a typed field."""
    elements: Any = array(FIXED[datatype].code)
    elements.frombytes(data)
    if sys.byteorder == "big":
        elements.byteswap()
    numbers: list[Any] = elements.tolist()
    return list(map(bool, numbers)) if datatype == BOOL else numbers
