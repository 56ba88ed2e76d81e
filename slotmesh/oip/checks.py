"""What is wrong with a tensor of a request: looked at before anything is done with its elements. Pure.

Invariants: what is wrong names its field, and is raised. Nothing here takes longer than a shape is long: elements were
counted, not read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import Final

from slotmesh.codec.arrays import MAX_EMPTY
from slotmesh.codec.byte_strings import MAX_STRINGS
from slotmesh.errors import Failure, bad_field
from slotmesh.oip.datatypes import BYTES, DATATYPES, FIXED
from slotmesh.oip.model import (
    ELEMENTS_OF_A_STRING,
    MAX_DIMENSIONS,
    MAX_INPUTS,
    MAX_NAME_BYTES,
    MAX_TYPED_ELEMENTS,
)

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
