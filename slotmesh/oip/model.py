"""One inference and its response, over gRPC and HTTP alike: the types, their bounds and checks. Pure, without numpy.

Invariants: elements are bytes as in the protocol's raw contents: little-endian, in C order, each element of BYTES
behind its length in 4 bytes. Each error names its field. Checks take time in proportion to a shape's dimensions: they
count elements and do not read them; `packed` and `unpacked` take elements that the caller has counted.
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

SERVER_NAME: Final = "slotmesh"
PLATFORM: Final = "slotmesh_python"
BACKEND: Final = "python"
EXTENSIONS: Final = ("binary_tensor_data", "model_configuration", "sequence", "statistics")
"""Named as in Triton."""


MAX_INPUTS: Final = 256
"""Tensors of one request."""
MAX_DIMENSIONS: Final = 32
MAX_TYPED_ELEMENTS: Final = 65_536
"""Elements of a request, or a response, that are sent one by one, as numbers of protobuf or JSON: 10 to 20 ms."""
ELEMENTS_OF_A_STRING: Final = 4
"""An element of BYTES takes as long as this number of numbers, and counts as that among `MAX_TYPED_ELEMENTS`."""
MAX_JSON_BYTES: Final = MAX_DECODED_BYTES
"""The JSON of a request, and the elements of a response in JSON. Larger tensors are sent in binary."""
MAX_PARAMETERS: Final = 64
MAX_NAME_BYTES: Final = 1024
"""Of a tensor's name."""

ParameterValue: TypeAlias = bool | int | float | str
NO_PARAMETERS: Final[Mapping[str, ParameterValue]] = MappingProxyType({})


def endpoint_and_model(name: str) -> tuple[str, str]:
    """The endpoint and the model id that a model name of the protocol states: `ENDPOINT` or `ENDPOINT:MODEL_ID`.

    Names of endpoints have no colon. The id is empty if there is none.
    """
    endpoint, _, model_id = name.partition(":")
    return endpoint, model_id


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
    """Names of the requested outputs; empty: all."""
    is_typed: bool = False
    """The elements of the inputs were sent one by one, so those of the outputs are, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceAnswer:
    """The response to an inference."""

    model: str
    version: str
    request_id: str = ""
    outputs: Sequence[Tensor] = ()
    parameters: Mapping[str, ParameterValue] = field(default_factory=lambda: NO_PARAMETERS)


_LARGEST: Final = 2**32 - 1
_SHARED_MEMORY: Final = "shared_memory"
_CLASSIFICATION: Final = "classification"


class InvalidRequest(ValueError):
    """A request is refused because of one of its fields."""

    def __init__(self, field: str, what: str) -> None:
        super().__init__(f"{field}: {what}")
        self.field = field
        self.what = what

    @property
    def failure(self) -> Failure:
        """The failure that the client gets."""
        return bad_field(self.field, self.what)

    def within(self, field: str) -> InvalidRequest:
        """The same error, for a field inside of the field `field`."""
        return InvalidRequest(f"{field}.{self.field}", self.what)


def check_count_of(field: str, count: int) -> None:
    """Raises InvalidRequest if there are too many tensors."""
    if count > MAX_INPUTS:
        raise InvalidRequest(field, f"at most {MAX_INPUTS} tensors, got {count}")


def check_names(names: Sequence[str], field: str = "inputs") -> None:
    """Raises InvalidRequest for too many tensors, a missing or too long name, or a duplicate."""
    check_count_of(field, len(names))
    seen: set[str] = set()
    for index, name in enumerate(names):
        if not name or len(name) > MAX_NAME_BYTES // 4:
            raise InvalidRequest(f"{field}[{index}].name", f"is required, at most {MAX_NAME_BYTES // 4} characters")
        if name in seen:
            raise InvalidRequest(f"{field}[{index}].name", f"{name!r} is there twice")
        seen.add(name)


def check_parameters_of_input(names: Iterable[str]) -> None:
    """Raises InvalidRequest for parameters that request an unsupported feature."""
    if any(name.startswith(_SHARED_MEMORY) for name in names):
        raise InvalidRequest("parameters", "shared memory is not supported: send the contents")


def check_parameters_of_output(names: Iterable[str]) -> None:
    """Raises InvalidRequest for parameters that request an unsupported feature."""
    for name in names:
        if name == _CLASSIFICATION:
            raise InvalidRequest("parameters.classification", "is not supported")
        if name.startswith(_SHARED_MEMORY):
            raise InvalidRequest("parameters", "shared memory is not supported")


def check_form(datatype: str, shape: Sequence[int]) -> tuple[int, ...]:
    """The shape as a tuple. Raises InvalidRequest for an unknown datatype or an impossible shape."""
    if datatype not in FIXED and datatype != BYTES:
        raise InvalidRequest("datatype", f"must be one of {', '.join(DATATYPES)}, got {datatype[:64]!r}")
    if len(shape) > MAX_DIMENSIONS:
        raise InvalidRequest("shape", f"at most {MAX_DIMENSIONS} dimensions, got {len(shape)}")
    sizes = tuple(shape)
    if sizes and not (min(sizes) >= 0 and max(sizes) <= _LARGEST):
        raise InvalidRequest("shape", f"each dimension must be from 0 to {_LARGEST}, got {list(sizes)}")
    count = prod(sizes)
    if not count and prod(filter(None, sizes)) > MAX_EMPTY:
        raise InvalidRequest("shape", f"a tensor without elements cannot have the shape {list(sizes)}")
    if datatype == BYTES and count > MAX_STRINGS:
        raise InvalidRequest("shape", f"at most {MAX_STRINGS} elements of BYTES, got {count}")
    return sizes


def size_problem(datatype: str, shape: tuple[int, ...], size: int) -> str:
    """Why raw contents of this size do not match the shape (of BYTES: are too short for it). Empty if they do."""
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
    """How much of `MAX_TYPED_ELEMENTS` a tensor takes whose elements are sent one by one."""
    return prod(shape) * (ELEMENTS_OF_A_STRING if datatype == BYTES else 1)


def check_count(field: str, shape: Sequence[int], count: int) -> None:
    """Raises InvalidRequest if elements that were sent one by one are more or fewer than the shape has."""
    if count != prod(shape):
        raise InvalidRequest(field, f"a tensor of shape {list(shape)} has {prod(shape)} elements, got {count}")


BOOL = "BOOL"
_NOT_BOOL: Final = "elements of BOOL are true or false"


def packed(field: str, datatype: str, values: Collection[Any]) -> bytes:
    """The elements of a datatype of fixed size that has a typed field, little-endian.

    Raises:
        InvalidRequest: an element is not a value of the datatype; the error names the `field`.
    """
    kind = FIXED[datatype]
    try:
        elements: Any = array(kind.code, values)
        if kind.code == "f":
            _check_range_of_float(field, datatype, values, elements)
    except OverflowError:
        if kind.code in "fd":
            raise InvalidRequest(field, f"an element is too large for {datatype}") from None
        if datatype == BOOL:
            raise InvalidRequest(field, _NOT_BOOL) from None
        bits = 8 * kind.size
        low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if kind.code.islower() else (0, (1 << bits) - 1)
        raise InvalidRequest(field, f"elements of {datatype} are from {low} to {high}") from None
    except TypeError:
        raise InvalidRequest(field, f"elements of {datatype} are numbers, and some are not") from None
    if datatype == BOOL and elements and max(elements) > 1:
        raise InvalidRequest(field, _NOT_BOOL)
    if sys.byteorder == "big":
        elements.byteswap()
    data: bytes = elements.tobytes()
    return data


def _check_range_of_float(field: str, datatype: str, values: Collection[Any], elements: array[float]) -> None:
    """`array` rounds a number that is too large to infinity; only an infinity that was sent may stay one."""
    if sum(map(isinf, elements)) != sum(map(isinf, values)):
        raise InvalidRequest(field, f"an element is too large for {datatype}")


def unpacked(datatype: str, data: bytes | memoryview) -> list[Any]:
    """The elements as numbers, or as booleans; of datatypes that have a typed field."""
    elements: Any = array(FIXED[datatype].code)
    elements.frombytes(data)
    if sys.byteorder == "big":
        elements.byteswap()
    numbers: list[Any] = elements.tolist()
    return list(map(bool, numbers)) if datatype == BOOL else numbers
