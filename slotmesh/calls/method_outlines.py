"""The parameters and results of a handler's methods, as replicas report them to routers and routers to clients. Pure.

Replicas read them off annotations: JSON Schemas, and tensors with the datatypes of the Open Inference Protocol.
Invariant: routers pass the text of a schema on, and never parse it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

BYTES: Final = "BYTES"
BF16: Final = "BF16"


@dataclass(frozen=True, slots=True)
class Datatype:
    """A datatype of elements of a fixed size, and their form in memory."""

    name: str
    size: int
    """Bytes of an element."""
    dtype: str
    """As numpy writes it, little-endian. Of BF16, which numpy lacks, that of FP32: it is widened, without a loss."""
    typed: str = ""
    """The field of `InferTensorContents` for its elements; empty: none."""
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
"""The field for the elements of BYTES."""
OF_DTYPE: Final[Mapping[str, str]] = MappingProxyType(
    {each.dtype: name for name, each in FIXED.items() if name != BF16}
)
"""The datatype of each dtype."""


MAX_OUTLINE_CHARS: Final = 64 * 1024
"""Text of all outlines of one replica."""
MAX_LISTED_CHARS: Final = 4 * 1024 * 1024
"""Of all outlines in one answer of a router."""


@dataclass(frozen=True, slots=True)
class MethodOutline:
    """Of one method; `__call__` for the handler itself."""

    method: str
    yields: bool = False
    """It gives values one by one."""
    schema: str = ""
    """JSON text, as `DescribedMethod.schema`; empty where nothing is known."""
    prefix_argument: str = ""
    """The argument whose beginning decides where calls go, for backends with `affinity: prefix`; empty: none."""
    prefix_position: int = 0
    """Its number among the positional arguments, from 1; 0: it is given by name only."""

    @property
    def size(self) -> int:
        return len(self.method) + len(self.schema) + len(self.prefix_argument) + 8


def fitting(outlines: Iterable[MethodOutline], most: int = MAX_OUTLINE_CHARS) -> tuple[MethodOutline, ...]:
    """The first outlines that together have at most `most` characters."""
    kept: list[MethodOutline] = []
    for each in outlines:
        most -= each.size
        if most < 0:
            break
        kept.append(each)
    return tuple(kept)


MAX_DESCRIBED: Final = 4_096
"""Tensors of all methods of a handler that are described; methods behind them are not."""
UNKNOWN_DIMENSION: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorType:
    """One tensor."""

    name: str
    datatype: str
    """As the protocol names it."""
    shape: tuple[int, ...]
    """-1 for an unknown dimension."""
    optional: bool = False
    """Of an input: the parameter has a default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodTensors:
    """The tensors of one method."""

    inputs: tuple[TensorType, ...] = ()
    outputs: tuple[TensorType, ...] = ()
    """Empty if the annotation does not determine them."""
    yields: bool = False
    """It has any number of results."""
    batch_size: int = 0
    """Calls that one batch has at most; 0: it is no batch method."""


NO_TENSORS: Final[Mapping[str, MethodTensors]] = MappingProxyType({})
"""Of unknown methods."""
