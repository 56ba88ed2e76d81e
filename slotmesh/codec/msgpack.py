"""Msgpack, in and out, with arrays of numpy in it.

Purpose: what has no arrays is msgspec's alone, and costs what it costs; what has some is encoded in a second attempt,
which puts those at the top level (arguments, results, entries of a result) where readers can use them without a copy.
Invariants: arrays become the extension that `arrays` describes, wherever they are; all other extensions stay what
msgspec makes of them. Where lists are wanted and an array comes, it becomes lists.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, TypeVar

import msgspec
from msgspec.msgpack import Ext

from slotmesh.codec.arrays import (
    EXTENSION,
    MAX_EMPTY,
    BrokenArray,
    array_of,
    block,
    body,
    contiguous,
    head,
    is_array,
    lists_in,
    lists_of,
    needed_numpy,
    travels_as_list,
    used_numpy,
)
from slotmesh.codec.byte_strings import STRINGS_EXTENSION, lists_in_strings, string_lists, strings_of
from slotmesh.codec.types.dataclass_defaults import with_defaults
from slotmesh.codec.types.hooks import of_msgpack, to_builtins
from slotmesh.user_code import each

DecodedT = TypeVar("DecodedT")

_MOST_IN_PLACE: Final = 64
"""Longer lists and maps are left to msgspec, with the arrays in them wherever they come to be."""

_MOST_SEARCHED: Final = 10_000
"""Entries among which the place of a broken array is looked for."""

_LISTS_PER_BYTE: Final = 2
"""Lists that arrays may become, for each byte of their payload: a list that is sent as such takes a byte, at least."""

# -- out -----------------------------------------------------------------------------------------------------------


class HasArrays(Exception):
    """There is an array somewhere in the value."""


def _first_attempt(value: Any) -> Any:
    if is_array(value) and not travels_as_list(value):
        raise HasArrays
    return to_builtins(value)


def _anywhere(value: Any) -> Any:
    if is_array(value) and not travels_as_list(value):
        return Ext(EXTENSION, body(value))
    return to_builtins(value)


encode_plain: Final = msgspec.msgpack.Encoder(enc_hook=_first_attempt).encode
"""Encodes a value. Raises what msgspec raises, and HasArrays: then it is for `with_arrays`."""
_encode_anything: Final = msgspec.msgpack.Encoder(enc_hook=_anywhere).encode


def each_to_msgpack(values: Sequence[Any]) -> list[bytes]:
    """Encodes many values, with the cost of a call to Python once."""
    try:
        return each(encode_plain, values)
    except HasArrays:
        return each(with_arrays, values)


def with_arrays(value: Any) -> bytes:
    """Encodes a value. Raises what msgspec raises, and TypeError, ValueError for arrays that cannot be sent."""
    parts: list[Any] = []  # buffers
    size = 0
    for item in _pieces(value):
        if is_array(item) and not travels_as_list(item):
            array = contiguous(item)
            parts += (head(array.dtype.str, array.shape, size), block(array))
            size += len(parts[-2]) + array.nbytes
        else:
            parts.append(item.head if isinstance(item, _Opening) else _encode_anything(item))
            size += len(parts[-1])
    return b"".join(parts)


class _Opening:
    """Begins a list or a map."""

    __slots__ = ("head",)

    def __init__(self, head: bytes) -> None:
        self.head = head


def _pieces(value: Any) -> Iterator[Any]:
    """What makes up the value, one behind the other."""
    kind = type(value)
    if kind in {list, tuple} and len(value) <= _MOST_IN_PLACE:
        yield _Opening(array_head(len(value)))
        yield from value
    elif kind is dict and len(value) <= _MOST_IN_PLACE:
        count = len(value)
        yield _Opening(bytes((0x80 | count,)) if count < 16 else b"\xde" + count.to_bytes(2, "big"))
        for key, each in value.items():
            yield key
            yield each
    else:
        yield value


def array_head(count: int) -> bytes:
    """The first bytes of a list of `count` entries."""
    if count < 16:
        return bytes((0x90 | count,))
    return b"\xdc" + count.to_bytes(2, "big") if count < 1 << 16 else b"\xdd" + count.to_bytes(4, "big")


# -- in ------------------------------------------------------------------------------------------------------------


def msgpack_decoder(wanted: Any, *, may_import: bool) -> Callable[[Any], Any]:
    """The function that decodes into `wanted`, at msgspec's own speed; what it raises is for `decode_again`.

    `may_import`: numpy is imported for the first array that comes; else arrays are refused where it is not imported.

    Raises:
        TypeError: `wanted` is nothing that msgpack can become.
    """
    extension = _extension_or_import if may_import else _extension_if_used
    return with_defaults(msgspec.msgpack.Decoder(wanted, dec_hook=of_msgpack, ext_hook=extension).decode, wanted)


def decode_again(decode: Callable[[Any], DecodedT], payload: Any) -> DecodedT:
    """Decodes what could not be decoded: with lists for arrays where these are wanted, or else with a better error.

    Raises:
        msgspec.DecodeError: a ValidationError with the path, for broken arrays, too.
    """
    try:
        return decode(payload)
    except BrokenArray as error:
        raise msgspec.ValidationError(f"{error} - at `${_place_of_array(payload)}`") from None
    except msgspec.ValidationError as error:
        if "got `ext`" not in str(error) or (with_lists := _with_lists(payload)) is None:
            raise
    try:
        return decode(with_lists)
    except msgspec.ValidationError as error:
        if "got `bytes`" not in str(error) or (with_text := _with_lists(payload, as_text=True)) is None:
            raise
    return decode(with_text)


def _extension_if_used(code: int, data: memoryview) -> Any:
    return _extension(code, data, used_numpy(), "nothing here uses numpy: annotate a list, or import it")


def _extension_or_import(code: int, data: memoryview) -> Any:
    return _extension(code, data, used_numpy() or needed_numpy(), "numpy is not installed: install it, or want lists")


def _extension(code: int, data: memoryview, numpy: Any, way_out: str) -> Any:
    if code == STRINGS_EXTENSION:
        return strings_of(numpy, data)
    if code != EXTENSION:
        return Ext(code, bytes(data))
    if numpy is None:
        raise BrokenArray(f"got an array of numpy, but {way_out}")
    return array_of(numpy, data)


def _with_lists(payload: Any, *, as_text: bool = False) -> bytes | None:
    """The payload with lists in the place of its arrays; None if it has none, or some that cannot become lists.

    `as_text`: byte strings of tensors are text.
    """
    found = False
    room = MAX_EMPTY + _LISTS_PER_BYTE * len(payload)

    def as_lists(code: int, data: memoryview) -> Any:
        nonlocal found, room
        if code not in {EXTENSION, STRINGS_EXTENSION}:
            return Ext(code, bytes(data))
        found = True
        room -= lists_in(data) if code == EXTENSION else lists_in_strings(data)
        if room < 0:
            raise BrokenArray("the arrays would become more lists than their payload is worth")
        if code == EXTENSION:
            return lists_of(data)
        return _as_text(string_lists(data)) if as_text else string_lists(data)

    try:
        value = msgspec.msgpack.Decoder(ext_hook=as_lists).decode(payload)
        return _encode_anything(value) if found else None
    except (BrokenArray, TypeError, ValueError, OverflowError, NotImplementedError):  # as complex numbers are
        return None


def _as_text(value: Any) -> Any:
    """Nested lists of byte strings as text. Raises ValueError where it is not UTF-8."""
    return [_as_text(each) for each in value] if isinstance(value, list) else value.decode()


def _place_of_array(payload: Any) -> str:
    """Where in the payload the first broken array is; empty where that would take long to find."""
    ahead = Ext(EXTENSION, b"")

    def mark(code: int, data: memoryview) -> Any:
        if code == EXTENSION:
            try:
                array_of(used_numpy(), data)
            except (BrokenArray, AttributeError):  # without numpy, the first one of all
                return ahead
        elif code == STRINGS_EXTENSION:
            try:
                strings_of(None, data)
            except BrokenArray:
                return ahead
        return None

    return _path_to(ahead, msgspec.msgpack.Decoder(ext_hook=mark).decode(payload))


def _path_to(marker: Any, value: Any) -> str:
    """Empty where it is not among the first entries: a payload can hold millions, and a better message is not worth it.

    Not recursive, either: values can be nested as deep as Python's own functions can.
    """
    path: list[str] = []
    ahead = [_entries(value)]
    for _ in range(_MOST_SEARCHED):
        entry = next(ahead[-1], None)
        if entry is None:
            ahead.pop()
            if not path:
                break
            path.pop()
            continue
        step, each = entry
        if each is marker:
            return "".join((*path, step))
        if isinstance(each, list | dict):
            path.append(step)
            ahead.append(_entries(each))
    return ""


def _entries(value: Any) -> Iterator[tuple[str, Any]]:
    """What a value consists of, each with its step of a path."""
    if isinstance(value, list):
        yield from ((f"[{index}]", each) for index, each in enumerate(value))
    elif isinstance(value, dict):
        yield from ((f".{key}", each) for key, each in value.items())
