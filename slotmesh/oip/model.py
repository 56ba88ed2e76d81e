"""One inference and its answer, whichever way they travel. Pure.

Invariant: elements are bytes as the protocol's raw contents have them: little-endian, in C order, BYTES each behind its
length in 4 bytes.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isinf, prod
from types import MappingProxyType
from typing import Any, Final, TypeAlias

from slotmesh.calls.method_outlines import BYTES, DATATYPES, FIXED
from slotmesh.codec.arrays import MAX_EMPTY
from slotmesh.codec.byte_strings import MAX_STRINGS
from slotmesh.codec.decoding_bounds import MAX_DECODED_BYTES
from slotmesh.errors import Failure, bad_field

# What a server of the Open Inference Protocol says of itself, over gRPC and HTTP alike.

SERVER_NAME: Final = "slotmesh"
PLATFORM: Final = "slotmesh_python"
BACKEND: Final = "python"
EXTENSIONS: Final = ("binary_tensor_data", "model_configuration", "sequence", "statistics")
"""As Triton names them."""


MAX_INPUTS: Final = 256
"""Tensors of one request."""
MAX_DIMENSIONS: Final = 32
MAX_TYPED_ELEMENTS: Final = 65_536
"""Elements of a request, or an answer, that are said one by one, as numbers of protobuf or JSON: 10 to 20 ms."""
ELEMENTS_OF_A_STRING: Final = 4
"""An element of BYTES takes as long as so many numbers, and counts as them among `MAX_TYPED_ELEMENTS`."""
MAX_JSON_BYTES: Final = MAX_DECODED_BYTES
"""JSON of a request, and of what of an answer is said in JSON. More goes in binary."""
MAX_PARAMETERS: Final = 64
MAX_NAME_BYTES: Final = 1024
"""Of a tensor's name."""

ParameterValue: TypeAlias = bool | int | float | str
NO_PARAMETERS: Final[Mapping[str, ParameterValue]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor, in a request or an answer."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: bytes | memoryview
    """The elements."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceRequest:
    """One inference."""

    model: str
    version: str = ""
    request_id: str = ""
    parameters: Mapping[str, ParameterValue] = field(default_factory=lambda: NO_PARAMETERS)
    inputs: Sequence[Tensor] = ()
    outputs: Sequence[str] = ()
    """Names of outputs that are wanted; empty: all."""
    is_typed: bool = False
    """Elements came one by one: the answer should say them so, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceAnswer:
    """What came of it."""

    model: str
    version: str
    request_id: str = ""
    outputs: Sequence[Tensor] = ()
    parameters: Mapping[str, ParameterValue] = field(default_factory=lambda: NO_PARAMETERS)


# What is wrong with a tensor of a request: looked at before anything is done with its elements. Pure.
#
# Invariants: what is wrong names its field, and is raised. Nothing here takes longer than a shape is long: elements
# were
# counted, not read.

_LARGEST: Final = 2**32 - 1
_SHARED_MEMORY: Final = "shared_memory"
_CLASSIFICATION: Final = "classification"


class RequestMistake(ValueError):
    """A request is refused for what one of its fields has."""

    def __init__(self, field: str, what: str) -> None:
        super().__init__(f"{field}: {what}")
        self.field = field
        self.what = what

    @property
    def failure(self) -> Failure:
        """As callers get it."""
        return bad_field(self.field, self.what)

    def within(self, field: str) -> RequestMistake:
        """The same of a field inside of another one."""
        return RequestMistake(f"{field}.{self.field}", self.what)


def check_count_of(field: str, count: int) -> None:
    """Too many tensors."""
    if count > MAX_INPUTS:
        raise RequestMistake(field, f"at most {MAX_INPUTS} tensors, got {count}")


def check_names(names: Sequence[str], field: str = "inputs") -> None:
    """Too many tensors, one without a name, or two of one name."""
    check_count_of(field, len(names))
    seen: set[str] = set()
    for index, name in enumerate(names):
        if not name or len(name) > MAX_NAME_BYTES // 4:
            raise RequestMistake(f"{field}[{index}].name", f"is required, at most {MAX_NAME_BYTES // 4} characters")
        if name in seen:
            raise RequestMistake(f"{field}[{index}].name", f"{name!r} is there twice")
        seen.add(name)


def check_parameters_of_input(names: Iterable[str]) -> None:
    """One of an input that asks for what there is not."""
    if any(name.startswith(_SHARED_MEMORY) for name in names):
        raise RequestMistake("parameters", "shared memory is not supported: send the contents")


def check_parameters_of_output(names: Iterable[str]) -> None:
    """One of an output that asks for what there is not."""
    for name in names:
        if name == _CLASSIFICATION:
            raise RequestMistake("parameters.classification", "is not supported")
        if name.startswith(_SHARED_MEMORY):
            raise RequestMistake("parameters", "shared memory is not supported")


def check_form(datatype: str, shape: Sequence[int]) -> tuple[int, ...]:
    """Raises for a datatype that there is not, or a shape that none can have; returns the shape."""
    if datatype not in FIXED and datatype != BYTES:
        raise RequestMistake("datatype", f"must be one of {', '.join(DATATYPES)}, got {datatype[:64]!r}")
    if len(shape) > MAX_DIMENSIONS:
        raise RequestMistake("shape", f"at most {MAX_DIMENSIONS} dimensions, got {len(shape)}")
    sizes = tuple(shape)
    if sizes and not (min(sizes) >= 0 and max(sizes) <= _LARGEST):
        raise RequestMistake("shape", f"each dimension must be from 0 to {_LARGEST}, got {list(sizes)}")
    count = prod(sizes)
    if not count and prod(filter(None, sizes)) > MAX_EMPTY:
        raise RequestMistake("shape", f"a tensor without elements cannot have the shape {list(sizes)}")
    if datatype == BYTES and count > MAX_STRINGS:
        raise RequestMistake("shape", f"at most {MAX_STRINGS} elements of BYTES, got {count}")
    return sizes


def size_problem(datatype: str, shape: tuple[int, ...], size: int) -> str:
    """Raw contents of another size than the shape says; of BYTES, less than the lengths take. Empty: there is none."""
    if datatype == BYTES:
        least = 4 * prod(shape)
        if size >= least:
            return ""
        return f"{prod(shape)} elements of BYTES of shape {list(shape)} have {least} bytes at least, got {size}"
    expected = prod(shape) * FIXED[datatype].size
    return "" if size == expected else f"{datatype} of shape {list(shape)} has {expected} bytes, got {size}"


TOO_MANY_TYPED: Final = (
    f"at most {MAX_TYPED_ELEMENTS} elements in all, of BYTES {MAX_TYPED_ELEMENTS // ELEMENTS_OF_A_STRING}"
)


def typed_elements(datatype: str, shape: Sequence[int]) -> int:
    """What a tensor takes of `MAX_TYPED_ELEMENTS` where its elements are said one by one."""
    return prod(shape) * (ELEMENTS_OF_A_STRING if datatype == BYTES else 1)


def check_count(field: str, shape: Sequence[int], count: int) -> None:
    """Elements that were said one by one, and are more or fewer than the shape says."""
    if count != prod(shape):
        raise RequestMistake(field, f"a tensor of shape {list(shape)} has {prod(shape)} elements, got {count}")


# Elements said one by one <-> their bytes. Pure, and without numpy: who calls this has counted them.

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
