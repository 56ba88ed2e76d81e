"""Values as tensors by name: the results of a handler to an inference, and the arguments that a caller passes to one.

| a value | becomes |
|---|---|
| an array | the tensor `output` |
| a map, a dataclass, a struct, a model of pydantic | a tensor for each of its entries |
| a tuple, or a list with arrays in it | the tensors `output0`, `output1`, … |
| another list, of numbers or of strings, nested or not | the tensor `output` |
| another iterable of the standard library: a range, a set, a deque | as a list |
| a number, a string or bytes, an enum with one of them | the tensor `output` of one element |
| None | no tensor |

The result of a batch method is split into the values of its calls:

| returned, for n rows in all | each call gets |
|---|---|
| an array of n rows | its rows |
| a list of n entries | its entries: arrays stacked, maps of one row each put together by name |
| a map, a dataclass, a tuple of arrays or lists of n rows | its rows of each |

Invariants: tensors have the element types of the Open Inference Protocol and no others, little-endian, in C order. A
call gets the rows that it sent, in order; an exception among the entries of a call fails that call only. This module
does not import numpy: it uses numpy only if the application has imported it.
"""

from __future__ import annotations

import sys
from array import array as packed
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from itertools import accumulate
from math import prod
from typing import Any, Final

import msgspec

from slotmesh.codec.arrays import MAX_DIMENSIONS, contiguous, elements, head, is_array, used_numpy
from slotmesh.codec.byte_strings import MAX_STRINGS, joined_strings, strings_head
from slotmesh.codec.types.hooks import to_builtins
from slotmesh.codec.types.models import codec_of_value

OUTPUT: Final = "output"
"""The name of a tensor that is returned by itself."""
MAX_TENSORS: Final = 256
TENSOR_DTYPES: Final = frozenset(
    {*("|b1", "|i1", "|u1"), *(f"<{kind}" for kind in ("i2", "i4", "i8", "u2", "u4", "u8", "f2", "f4", "f8"))}
)
"""Types as numpy writes them."""
_TEXT: Final = {str, bytes, bytearray, memoryview}
_NUMBERS: Final = {int, float, bool}
_SCALARS: Final = _TEXT | _NUMBERS
_HEAD_OF_MAP_16: Final = b"\xde"


def tensors_to_payload(value: Any) -> bytes:
    """The payload of a method's result, or of a caller's argument.

    Raises:
        TypeError, ValueError: it cannot be expressed as tensors; the message names the tensor.
    """
    named = tensors_by_name(value)
    if len(named) > MAX_TENSORS:
        raise ValueError(f"at most {MAX_TENSORS} tensors, got {len(named)}")
    parts = [map_head(len(named))]
    size = len(parts[0])
    for name, each in named.items():
        key = name_head(str.__str__(name))
        try:
            begin, data = _tensor(each, size + len(key))
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise TypeError(f"tensor {name}: {error}") from None
        parts += (key, begin, data)
        size += len(key) + len(begin) + len(data)
    return b"".join(parts)


def map_head(count: int) -> bytes:
    """The first bytes of a map of `count` tensors."""
    return bytes((0x80 | count,)) if count < 16 else _HEAD_OF_MAP_16 + count.to_bytes(2, "big")


def name_head(name: str) -> bytes:
    """A name, as a string of msgpack."""
    return msgspec.msgpack.encode(name)


def tensors_by_name(value: Any) -> Mapping[str, Any]:
    """The tensors that a value stands for.

    Raises:
        TypeError: a key is not text.
    """
    if value is None:
        return {}
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise TypeError(f"tensors have names, got a key of type {type(key).__name__}")
        return value
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: getattr(value, each.name) for each in fields(value)}
    if isinstance(value, msgspec.Struct):
        return msgspec.structs.asdict(value)
    if (model := codec_of_value(value)) is not None:
        dumped = model.to_msgpack(value)
        return dumped if isinstance(dumped, Mapping) else {OUTPUT: dumped}
    if isinstance(value, tuple) or (isinstance(value, list) and any(map(is_array, value))):
        return {f"{OUTPUT}{index}": each for index, each in enumerate(value)}
    return {OUTPUT: value}


def _tensor(value: Any, before: int) -> tuple[bytes, bytes]:
    """Head and elements of one tensor, `before` bytes into the payload."""
    if is_array(value):
        return _of_array(value, before)
    if type(value) in _TEXT or type(value) in _NUMBERS:
        return _of_list([value], before)
    if isinstance(value, list | tuple):
        return _of_list(value, before)
    if (tolist := getattr(value, "tolist", None)) is not None:  # a scalar of numpy, or a foreign array
        numpy: Any = used_numpy()
        if numpy is not None:
            return _of_array(numpy.asarray(value), before)
        plain = tolist()
        return _of_list(plain if isinstance(plain, list) else [plain], before)
    if (plain := _plain(value)) is not None:
        return _tensor(plain, before)
    raise TypeError(f"expected an array, a list or a number, got {type(value).__name__}")


def _of_array(array: Any, before: int) -> tuple[bytes, bytes]:
    kind = array.dtype.kind
    if kind in "OSU":
        if array.size > MAX_STRINGS:
            raise ValueError(f"at most {MAX_STRINGS} byte strings, got {array.size}")
        data = joined_strings(map(_as_bytes, array.reshape(-1).tolist()))
        return strings_head(array.shape, len(data)), data
    if array.dtype.byteorder not in "|=" or (sys.byteorder == "big" and array.dtype.byteorder == "="):
        array = array.astype(array.dtype.newbyteorder("<"))
    if array.dtype.str not in TENSOR_DTYPES:
        raise TypeError(f"an array of {array.dtype} is no tensor: convert it with astype()")
    array = contiguous(array)
    return head(array.dtype.str, array.shape, before), elements(array).tobytes()


def _of_list(values: Sequence[Any], before: int) -> tuple[bytes, bytes]:
    shape = tuple(_shape_of(values))
    flat = list(_flat(values, shape))
    kinds = set(map(type, flat))
    if not kinds <= _SCALARS:
        flat = [each if type(each) in _SCALARS else _plain(each, each) for each in flat]
        kinds = set(map(type, flat))
    if kinds <= _TEXT and kinds:
        if len(flat) > MAX_STRINGS:
            raise ValueError(f"at most {MAX_STRINGS} byte strings, got {len(flat)}")
        data = joined_strings(map(_as_bytes, flat))
        return strings_head(shape, len(data)), data
    if not kinds <= _NUMBERS:
        strange = next(each for each in flat if type(each) not in _NUMBERS)
        raise TypeError(f"expected numbers, or strings, got {type(strange).__name__} among them")
    if kinds == {bool}:
        return head("|b1", shape, before), bytes(flat)
    if float in kinds or not kinds:
        code, dtype = "d", "<f8"
    elif max(flat) >= 1 << 63:
        code, dtype = "Q", "<u8"
    else:
        code, dtype = "q", "<i8"
    numbers = packed(code, flat)
    if sys.byteorder == "big":
        numbers.byteswap()
    return head(dtype, shape, before), numbers.tobytes()


def _plain(value: Any, otherwise: Any = None) -> Any:
    """The plain value of another type: an enum, a class derived from a number or a text, a range, a set."""
    if isinstance(value, Enum):
        return value.value
    try:
        plain = to_builtins(value)
    except (TypeError, ValueError):
        return otherwise
    return otherwise if isinstance(plain, dict) or type(plain) is type(value) else plain


def _shape_of(values: Any) -> Iterator[int]:
    for _ in range(MAX_DIMENSIONS):
        if not isinstance(values, list | tuple):
            return
        yield len(values)
        if not values:
            return
        values = values[0]
    if isinstance(values, list | tuple):
        raise TypeError(f"at most {MAX_DIMENSIONS} dimensions")


def _flat(values: Any, shape: Sequence[int]) -> Sequence[Any]:
    for size in shape[1:]:
        if any(not isinstance(each, list | tuple) or len(each) != size for each in values):
            raise ValueError("lists of one tensor must have the same length")
        values = [each for part in values for each in part]
    if len(values) != prod(shape) or any(isinstance(each, list | tuple) for each in values):
        raise ValueError("lists of one tensor must have the same depth")
    flat: Sequence[Any] = values
    return flat


def _as_bytes(value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise TypeError(f"expected strings or bytes, got {type(value).__name__}")


def split_rows(returned: Any, rows: Sequence[int]) -> Sequence[Any] | None:
    """A value, or an exception, for each call; `rows` is how many each has. None if the numbers do not match."""
    total = sum(rows)
    if is_array(returned):
        return _rows_of_array(returned, rows) if returned.ndim and len(returned) == total else None
    if isinstance(returned, list) or (isinstance(returned, tuple) and not _are_columns(returned, total)):
        if len(returned) != total:
            return None
        return [_of_entries(returned[begin:end]) for begin, end in _spans(rows)]
    if isinstance(returned, tuple):
        parts = [split_rows(each, rows) for each in returned]
        return [tuple(entry) for entry in zip(*(part for part in parts if part is not None), strict=True)]
    try:
        named = tensors_by_name(returned)
    except TypeError:
        return None
    columns = {name: _column(each, rows) for name, each in named.items()}
    if not columns or any(column is None for column in columns.values()):
        return None
    return [
        dict(zip(columns, entry, strict=True))
        for entry in zip(*(column for column in columns.values() if column is not None), strict=True)
    ]


def count_of(returned: Any) -> str:
    """The number of rows returned, for an error message."""
    if is_array(returned):
        return f"an array of shape {tuple(returned.shape)}"
    if isinstance(returned, list | tuple):
        return f"a {type(returned).__name__} of {len(returned)}"
    if isinstance(returned, Mapping):
        counts = ", ".join(
            f"{name}: {len(each) if hasattr(each, '__len__') else '?'}" for name, each in returned.items()
        )
        return f"rows by name ({counts})"
    return f"a {type(returned).__name__}"


def _column(value: Any, rows: Sequence[int]) -> Sequence[Any] | None:
    return split_rows(value, rows) if is_array(value) or isinstance(value, list) else None


def _are_columns(returned: tuple[Any, ...], total: int) -> bool:
    """Whether these are several outputs, rather than an entry for each row."""
    return bool(returned) and all(
        (is_array(each) and each.ndim and len(each) == total) or (isinstance(each, list) and len(each) == total)
        for each in returned
    )


def _rows_of_array(array: Any, rows: Sequence[int]) -> Sequence[Any]:
    if rows[0] and rows.count(rows[0]) == len(rows):
        alike: Sequence[Any] = array.reshape(len(rows), rows[0], *array.shape[1:])
        return alike
    return [array[begin:end] for begin, end in _spans(rows)]


def _spans(rows: Sequence[int]) -> Iterator[tuple[int, int]]:
    ends = list(accumulate(rows))
    return zip([0, *ends], ends, strict=False)


def _of_entries(entries: Sequence[Any]) -> Any:
    """The value of one call with these rows."""
    if (raised := next((each for each in entries if isinstance(each, BaseException)), None)) is not None:
        return raised
    if entries and all(map(is_array, entries)):
        return _stacked(entries)
    if entries and all(isinstance(each, Mapping) for each in entries):
        names = entries[0].keys()
        if any(each.keys() != names for each in entries):
            return TypeError("the rows of one call have outputs of different names")
        return {name: _of_entries([each[name] for each in entries]) for name in names}
    return [each.item() if hasattr(each, "item") and not is_array(each) else each for each in entries]


def _stacked(entries: Sequence[Any]) -> Any:
    numpy: Any = used_numpy()
    try:
        return numpy.stack(entries)
    except ValueError as error:
        return TypeError(f"the rows of one call cannot be one tensor: {error}")
