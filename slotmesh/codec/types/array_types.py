"""The arrays that an annotation describes, and the conversion to them: `np.ndarray`, `NDArray[np.float32]`.

Invariants: a value changes its dtype only where it stays the same number, but for the rounding of floats. No array is
made of anything but numbers, so that none is larger than the list that it came from.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Final, Union, get_args, get_origin

from slotmesh.codec.arrays import MAX_DIMENSIONS, check_elements, used_numpy

if TYPE_CHECKING:
    import numpy as np

    from slotmesh.codec.arrays import Array

_NUMBERS: Final = frozenset({int, float, bool})


class ArrayType:
    """An annotation that means arrays."""

    __slots__ = ("_family", "_name", "dtype")

    def __init__(self, family: Any, dtype: np.dtype[Any] | None) -> None:
        """`family`: what the dtype must be a kind of, where the annotation does not name one, as `np.floating`."""
        self._family = family
        self.dtype = dtype
        """None if there are several that will do."""
        name = str(dtype) if dtype is not None else getattr(family, "__name__", "")
        self._name = f"ndarray of {name}" if name else "ndarray"

    @property
    def names_no_dtype(self) -> bool:
        """Whether the annotation asks for a family, so that bytes could be several."""
        return self._family is not None

    @property
    def is_of_no_numbers(self) -> bool:
        """Whether such arrays never travel as arrays: of objects, strings and structures."""
        numpy: Any = used_numpy()
        return self._family is not None and issubclass(self._family, numpy.object_ | numpy.flexible)

    def __str__(self) -> str:
        return self._name

    def fit(self, array: Array) -> Array:
        """The array as it is wanted.

        Raises:
            TypeError: its elements are of another kind, or out of range.
        """
        numpy: Any = used_numpy()
        wanted = self.dtype
        if not array.size:
            return self._empty(array)
        if wanted is None:
            if self._family is not None and not numpy.issubdtype(array.dtype, self._family):
                raise TypeError(f"Expected `{self._name}`, got `ndarray of {array.dtype}`")
            return array
        if array.dtype == wanted:
            return array
        are_integers = array.dtype.kind in "iu" and wanted.kind in "iu"
        if not are_integers and not numpy.can_cast(array.dtype, wanted, "same_kind"):
            raise TypeError(f"Expected `{self._name}`, got `ndarray of {array.dtype}`")
        try:
            with numpy.errstate(over="raise", invalid="ignore"):  # some bits of nan are "invalid"
                fitting: Array = array.astype(wanted)
        except FloatingPointError:
            raise TypeError(f"Expected `{self._name}`, got numbers out of its range") from None
        if are_integers and not _is_same(fitting, array):
            raise TypeError(f"Expected `{self._name}`, got numbers out of its range")
        return fitting

    def _empty(self, array: Array) -> Array:
        """An array without elements, which is of any dtype."""
        numpy: Any = used_numpy()
        wanted = self.dtype
        if wanted is None and self._family is not None and not numpy.issubdtype(array.dtype, self._family):
            wanted = next((each for each in map(numpy.dtype, "dqQD?") if numpy.issubdtype(each, self._family)), None)
            if wanted is None:  # as `np.datetime64`
                raise TypeError(f"Expected `{self._name}`, got `ndarray of {array.dtype}`")
        empty: Array = array if wanted is None or wanted == array.dtype else numpy.empty(array.shape, wanted)
        return empty

    def of_list(self, values: list[Any]) -> Array:
        """An array of nested lists of numbers.

        Raises:
            TypeError: there is something else in them; the message ends with its place.
            ValueError: the lists differ in length.
        """
        _check_numbers(values, MAX_DIMENSIONS)
        numpy: Any = used_numpy()
        try:
            array: Array = numpy.asarray(values)
        except ValueError:
            raise ValueError("Expected lists of the same length") from None
        if array.dtype.kind == "O":
            raise ValueError("Expected numbers that fit into 64 bits")
        return self.fit(array)

    def of_bytes(self, payload: bytes) -> Array:
        """A flat, read-only array over the bytes: its elements, or the bytes themselves where there is no dtype.

        Raises:
            ValueError: they do not come out even.
        """
        numpy: Any = used_numpy()
        dtype = numpy.dtype(numpy.uint8) if self.dtype is None else self.dtype
        if len(payload) % dtype.itemsize:
            raise ValueError(f"Expected {dtype.itemsize} bytes for each {dtype}, got {len(payload)} in all")
        array: Array = numpy.frombuffer(payload, dtype) if payload else numpy.empty(0, dtype)
        check_elements(numpy, array)
        return array

    def of_value(self, value: Any) -> Array:
        """One row of many: an array, or lists of numbers, or a number alone.

        Raises:
            TypeError, ValueError: it is something else.
        """
        numpy: Any = used_numpy()
        if isinstance(value, numpy.ndarray):
            return self.fit(value)
        if isinstance(value, list):
            return self.of_list(value)
        if type(value) not in _NUMBERS:
            raise TypeError(f"Expected `{self._name}`, got `{type(value).__qualname__}`")
        array: Array = numpy.asarray(value)
        if array.dtype.kind == "O":
            raise ValueError("Expected a number that fits into 64 bits")
        return self.fit(array)


def array_type(annotation: Any) -> ArrayType | None:
    """The arrays that the annotation describes; None if it is of another type."""
    numpy = used_numpy()  # where a handler speaks of numpy, it has imported it
    if numpy is None:
        return None
    if get_origin(annotation) in {Union, UnionType}:
        others = [it for it in get_args(annotation) if it is not NoneType]
        return array_type(others[0]) if len(others) == 1 else None
    try:
        return _array_type(numpy, annotation)
    except TypeError:  # nothing that could be looked up
        return None


@lru_cache(maxsize=1024)
def _array_type(numpy: Any, annotation: Any) -> ArrayType | None:
    if (get_origin(annotation) or annotation) is not numpy.ndarray:
        return None
    of_dtype = get_args(annotation)[1:]
    scalar = (get_args(of_dtype[0]) or (None,))[0] if of_dtype else None
    scalar = get_origin(scalar) or scalar  # `np.floating[Any]`
    if not isinstance(scalar, type) or not issubclass(scalar, numpy.generic) or scalar is numpy.generic:
        return ArrayType(None, None)
    if scalar in set(numpy.sctypeDict.values()) - {numpy.object_} and scalar().dtype.kind in "biufc":
        return ArrayType(None, numpy.dtype(scalar))
    return ArrayType(scalar, None)


def _is_same(fitting: Array, array: Array) -> bool:
    """Whether integers are what they were. Compared as numbers: a negative one wraps to the same bits otherwise."""
    same: bool = (fitting == array).all().item()
    return same


def _check_numbers(values: Sequence[Any], depth: int) -> None:
    """Raises TypeError for anything but numbers and lists of them, with its place in the manner of msgspec."""
    kinds = set(map(type, values))
    if kinds <= _NUMBERS:
        return
    if not depth:
        raise TypeError(f"Expected at most {MAX_DIMENSIONS} dimensions")
    numpy: Any = used_numpy()
    are_nested = not kinds & _NUMBERS
    for index, value in enumerate(values):
        if type(value) in _NUMBERS:
            continue
        if are_nested and type(value) is list:
            try:
                _check_numbers(value, depth - 1)
            except TypeError as error:
                what, _, path = str(error).partition(" - at `$")
                raise TypeError(f"{what} - at `$[{index}]{path or '`'}") from None
        elif not (are_nested and type(value) is numpy.ndarray):
            raise TypeError(f"Expected a number, got `{type(value).__qualname__}` - at `$[{index}]`")
