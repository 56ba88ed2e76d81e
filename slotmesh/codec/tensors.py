"""Values as tensors by name: what a handler returns to an inference, and what a caller passes to one.

| a value | becomes |
|---|---|
| an array | the tensor `output` |
| a map, a dataclass, a struct, a model of pydantic | a tensor for each of its entries |
| a tuple, or a list with arrays in it | the tensors `output0`, `output1`, … |
| another list, of numbers or of strings, nested or not | the tensor `output` |
| another iterable of the standard library: a range, a set, a deque | as a list |
| a number, a string or bytes, an enum with one of them | the tensor `output` of one element |
| None | no tensor |

Invariants: tensors have the element types of the Open Inference Protocol and no others, little-endian, in C order.
numpy is never imported for those who do not use it.
"""

from __future__ import annotations

import sys
from array import array as packed
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from math import prod
from typing import Any, Final

import msgspec

from slotmesh.codec.arrays import MAX_DIMENSIONS, contiguous, elements, head, is_array, used_numpy
from slotmesh.codec.byte_strings import MAX_STRINGS, joined_strings, strings_head
from slotmesh.codec.hooks import to_builtins
from slotmesh.codec.models import codec_of_value

OUTPUT: Final = "output"
"""Name of a tensor that is returned by itself."""
MAX_TENSORS: Final = 256
MAX_TENSOR_NAME_BYTES: Final = 1024
TENSOR_DTYPES: Final = frozenset(
    {*("|b1", "|i1", "|u1"), *(f"<{kind}" for kind in ("i2", "i4", "i8", "u2", "u4", "u8", "f2", "f4", "f8"))}
)
"""As numpy writes them."""
_TEXT: Final = {str, bytes, bytearray, memoryview}
_NUMBERS: Final = {int, float, bool}
_SCALARS: Final = _TEXT | _NUMBERS
_HEAD_OF_MAP_16: Final = b"\xde"


def tensors_to_payload(value: Any) -> bytes:
    """The payload of what a method returned, or of what a caller passes.

    Raises:
        TypeError, ValueError: it is nothing that tensors can say; the message names the tensor.
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
    """What a map of so many tensors begins with."""
    return bytes((0x80 | count,)) if count < 16 else _HEAD_OF_MAP_16 + count.to_bytes(2, "big")


def name_head(name: str) -> bytes:
    """A name, as a string of msgpack."""
    return msgspec.msgpack.encode(name)


def tensors_by_name(value: Any) -> Mapping[str, Any]:
    """Which tensors a value stands for.

    Raises:
        TypeError: a key is no text.
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
    """Head and elements of one tensor that comes behind so many bytes."""
    if is_array(value):
        return _of_array(value, before)
    if type(value) in _TEXT or type(value) in _NUMBERS:
        return _of_list([value], before)
    if isinstance(value, list | tuple):
        return _of_list(value, before)
    if (tolist := getattr(value, "tolist", None)) is not None:  # a scalar of numpy, or an array of something like it
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
    """What a value of another type is made of: an enum, a class derived from a number or a text, a range, a set."""
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
