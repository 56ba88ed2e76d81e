"""Datatypes of the Open Inference Protocol, and how their elements lie in memory. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

BYTES: Final = "BYTES"
BF16: Final = "BF16"


@dataclass(frozen=True, slots=True)
class Datatype:
    """One of them, of elements of a fixed size."""

    name: str
    size: int
    """Bytes of an element."""
    dtype: str
    """As numpy writes it, little-endian. Of BF16, which numpy lacks, that of FP32: it is widened, without a loss."""
    typed: str = ""
    """The field of `InferTensorContents` that has its elements; empty: it has none."""
    code: str = ""
    """The type code of `array` and `memoryview`."""


FIXED: Final[Mapping[str, Datatype]] = MappingProxyType(
    {
        each.name: each
        for each in (
            Datatype("BOOL", 1, "|b1", "bool_contents", "B"),
            Datatype("UINT8", 1, "|u1", "uint_contents", "B"),
            Datatype("UINT16", 2, "<u2", "uint_contents", "H"),
            Datatype("UINT32", 4, "<u4", "uint_contents", "I"),
            Datatype("UINT64", 8, "<u8", "uint64_contents", "Q"),
            Datatype("INT8", 1, "|i1", "int_contents", "b"),
            Datatype("INT16", 2, "<i2", "int_contents", "h"),
            Datatype("INT32", 4, "<i4", "int_contents", "i"),
            Datatype("INT64", 8, "<i8", "int64_contents", "q"),
            Datatype("FP16", 2, "<f2"),
            Datatype(BF16, 2, "<f4"),
            Datatype("FP32", 4, "<f4", "fp32_contents", "f"),
            Datatype("FP64", 8, "<f8", "fp64_contents", "d"),
        )
    }
)
DATATYPES: Final = (*FIXED, BYTES)
"""All names."""
TYPED_BYTES: Final = "bytes_contents"
"""The field that has the elements of BYTES."""
OF_DTYPE: Final[Mapping[str, str]] = MappingProxyType(
    {each.dtype: name for name, each in FIXED.items() if name != BF16}
)
"""The datatype of each dtype."""
