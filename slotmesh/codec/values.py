"""Values <-> payloads, one value each: the results of handlers, for their callers.

Invariants: a content type's encoder and decoder are inverse for what the type can carry. Never pickle.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from typing import Any, Final

import msgspec
from google.protobuf.message import DecodeError as ProtobufDecodeError
from google.protobuf.message import EncodeError as ProtobufEncodeError
from google.protobuf.message import Message

from slotmesh.calls.result_envelopes import RPC_TYPES
from slotmesh.codec.arrays import EXT_32, BrokenArray, is_array, travels_as_list, used_numpy
from slotmesh.codec.content_types import (
    JSON,
    MSGPACK,
    OCTET_STREAM,
    PROTOBUF,
    TENSORS,
    DecodeError,
    EncodeError,
    unknown_content_type,
    where,
)
from slotmesh.codec.decoding_bounds import json_decoder
from slotmesh.codec.msgpack import (
    HasArrays,
    array_head,
    decode_again,
    each_to_msgpack,
    encode_plain,
    msgpack_decoder,
    with_arrays,
)
from slotmesh.codec.rows import SMALL, arrays_in, bytes_of_rows, msgpack_of_rows, rows_of_msgpack
from slotmesh.codec.rpc import encode_reply
from slotmesh.codec.tensors import OUTPUT, TENSOR_DTYPES, map_head, name_head, tensors_to_payload
from slotmesh.codec.types.annotations import checked, way_out
from slotmesh.codec.types.hooks import to_json
from slotmesh.errors import Executed, Reason
from slotmesh.user_code import described, each, forget_call, text_of

_BYTES: Final = {bytes}

Encode = Callable[[Any], bytes]
"""Raises EncodeError."""
DecodeFunction = Callable[[bytes], Any]
"""Raises DecodeError."""

_UNDECODABLE = (msgspec.DecodeError, BrokenArray, ProtobufDecodeError, RecursionError, UnicodeDecodeError)
_UNENCODABLE = (TypeError, ValueError, OverflowError, RecursionError, NotImplementedError)

_ONE_OUTPUT: Final = map_head(1) + name_head(OUTPUT)
_OF_MSGPACK: Final = frozenset({MSGPACK, TENSORS})

_to_json = msgspec.json.Encoder(enc_hook=to_json).encode


def encode(content_type: str, value: Any) -> bytes:
    """Encodes one value.

    Raises:
        EncodeError: the content type is not known, or cannot carry the value.
    """
    return encoder(content_type)(value)


def decode(content_type: str, payload: bytes) -> Any:
    """Decodes one value, into builtin types. A protobuf message needs its class: `decoder`.

    Raises:
        DecodeError: the content type is not known, or the payload is not of it.
    """
    return _any_decoder(content_type)(payload)


@cache
def _any_decoder(content_type: str) -> DecodeFunction:
    return decoder(content_type)


def encoder(content_type: str) -> Encode:
    """The function that encodes; take it once for many values."""
    try:
        return _ENCODERS[content_type]
    except KeyError:
        raise EncodeError(unknown_content_type(content_type)) from None


def encode_each(content_type: str, values: Iterable[Any]) -> list[bytes]:
    """Encodes many values, or the rows of an array, with the cost of a call to Python once.

    Raises:
        EncodeError: the content type is not known, or cannot carry one of the values.
    """
    if type(values) is list and content_type in {OCTET_STREAM, ""} and set(map(type, values)) <= _BYTES:
        return values
    try:
        if is_array(values):
            return _encode_rows(content_type, values)
        if not isinstance(values, list | tuple):
            values = list(values)
        if content_type == MSGPACK:
            return each_to_msgpack(values)
        return each(_to_json if content_type == JSON else encoder(content_type), values)
    except EncodeError:
        raise
    except Exception as error:  # noqa: BLE001 - a foreign object may fail in any way when it is read
        raise _unencodable(content_type, error) from None


def _encode_rows(content_type: str, array: Any) -> list[bytes]:
    if content_type in {OCTET_STREAM, ""}:
        return bytes_of_rows(array)
    if content_type == MSGPACK and array.ndim > 1 and not travels_as_list(array):
        return msgpack_of_rows(array)
    if content_type == TENSORS and array.ndim > 1 and array.dtype.str in TENSOR_DTYPES:
        return msgpack_of_rows(array, _ONE_OUTPUT)
    return encode_each(content_type, list(array) if content_type == TENSORS else array.tolist())


def decoder(content_type: str, wanted: Any = Any, *, result_of: str = "") -> DecodeFunction:
    """The function that decodes into `wanted`; take it once for many payloads.

    `result_of`: the method whose results these are; empty if they are none.

    Raises:
        DecodeError: the content type is not known.
        TypeError: `wanted` is nothing that the content type can become.
    """
    raw = _raw_decoder(content_type, wanted)
    if raw is _bytes:
        return raw

    def decode(payload: bytes) -> Any:
        try:
            return raw(payload)
        except BaseException as error:  # noqa: BLE001 - types of the user's own may raise anything, SystemExit, too
            return _second_attempt(raw, payload, error, content_type, result_of)

    return decode


def decoder_of_each(content_type: str, wanted: Any = Any) -> Callable[[list[bytes]], list[Any]]:
    """As `decoder`, for lists: either all payloads decode, or DecodeError is raised."""
    raw = _raw_decoder(content_type, wanted)

    def decode_each(payloads: list[bytes]) -> list[Any]:
        try:
            if content_type == MSGPACK and (arrays := _small_arrays(payloads, wanted)) is not None:
                return arrays
            return each(raw, payloads)
        except BaseException as error:  # noqa: BLE001 - as above
            if content_type not in _OF_MSGPACK or not _is_undecodable(error):
                raise _undecodable(error, content_type) from None
        return each(decoder(content_type, wanted), payloads)

    return list if raw is _bytes else decode_each


def _small_arrays(payloads: list[bytes], wanted: Any) -> list[Any] | None:
    """Arrays of one dtype and shape, decoded together."""
    first = payloads[0] if payloads else b""
    if first[:1] != EXT_32 or len(first) > SMALL or len(payloads) < 2:
        return None
    numpy = used_numpy()
    if numpy is None or (wanted is not Any and wanted is not numpy.ndarray):
        return None
    rows = rows_of_msgpack(payloads, b"")
    return None if rows is None else arrays_in(rows)


def _second_attempt(
    raw: DecodeFunction, payload: bytes, error: BaseException, content_type: str, result_of: str
) -> Any:
    if content_type in _OF_MSGPACK and _is_undecodable(error):
        try:
            return decode_again(raw, payload)
        except BaseException as better:  # noqa: BLE001 - as above
            error = better
    raise _undecodable(error, content_type, result_of) from None


def is_message(wanted: Any) -> bool:
    """Whether this is a class of protobuf messages."""
    return isinstance(wanted, type) and issubclass(wanted, Message)


def _raw_decoder(content_type: str, wanted: Any) -> DecodeFunction:
    """Raises one of `_UNDECODABLE` where a payload is not what it should be."""
    if content_type in _OF_MSGPACK or content_type == JSON:
        wanted = checked(wanted)
        try:
            return json_decoder(wanted) if content_type == JSON else msgpack_decoder(wanted, may_import=True)
        except TypeError as error:
            raise TypeError(way_out(error)) from None
    if content_type in {OCTET_STREAM, ""}:
        if wanted is not Any and wanted is not bytes:
            raise TypeError(f"{OCTET_STREAM} gives bytes, never {_name(wanted)}")
        return _bytes
    if content_type == PROTOBUF:
        if not is_message(wanted):
            raise TypeError(f"{PROTOBUF} needs the class of the message, got {_name(wanted)}")
        parse: DecodeFunction = wanted.FromString
        return parse
    raise DecodeError(unknown_content_type(content_type), reason=Reason.BAD_REQUEST, field="content_type")


def _is_undecodable(error: BaseException) -> bool:
    """Whether it is of the decoders' own, and no type of the user's has raised it."""
    return issubclass(type(error), _UNDECODABLE)


def _undecodable(error: BaseException, content_type: str, result_of: str = "") -> DecodeError:
    if not _is_undecodable(error):
        message = f"value: {described(error)}"
    elif content_type == PROTOBUF:
        message = f"payload: not a message of its class: {text_of(error)}"
    else:
        message = where(text_of(error), "value")
    forget_call(error)
    if not result_of:
        return DecodeError(message)
    return DecodeError(f"the result of {result_of} is not what was asked for: {message}", executed=Executed.YES)


def _unencodable(content_type: str, error: Exception) -> EncodeError:
    why = text_of(error) if issubclass(type(error), _UNENCODABLE) else described(error)
    return EncodeError(f"{content_type} cannot carry this: {why}")


def _bytes(payload: bytes) -> bytes:
    return payload


def _encode_bytes(value: Any) -> bytes:
    if type(value) is bytes:
        return value
    if value is None:  # a handler without a result
        return b""
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(memoryview(value))  # its buffer: a subclass's own methods are not called
    if is_array(value):
        return _elements(value)
    raise EncodeError(f"{OCTET_STREAM} carries bytes, got {_name(type(value))}; {JSON} and {MSGPACK} carry values")


def _elements(array: Any) -> bytes:
    try:
        return bytes_of_rows(array[None])[0]
    except TypeError as error:
        raise EncodeError(f"{OCTET_STREAM} cannot carry this: {error}") from None


def _encode_message(value: Any) -> bytes:
    if value is None:
        return b""
    if not issubclass(type(value), Message):
        raise EncodeError(f"{PROTOBUF} carries a protobuf message, got {_name(type(value))}")
    try:
        serialized: bytes = value.SerializeToString()
        return serialized
    except ProtobufEncodeError as error:
        raise EncodeError(f"{value.DESCRIPTOR.full_name}: {error}") from None


def _encode_msgpack(value: Any) -> bytes:
    try:
        try:
            return encode_plain(value)
        except HasArrays:
            return with_arrays(value)
    except Exception as error:  # noqa: BLE001 - as above
        raise _unencodable(MSGPACK, error) from None


def _encode_tensors(value: Any) -> bytes:
    try:
        return tensors_to_payload(value)
    except Exception as error:  # noqa: BLE001 - as above
        raise _unencodable(TENSORS, error) from None


def _encode_json(value: Any) -> bytes:
    try:
        return _to_json(value)
    except Exception as error:  # noqa: BLE001 - as above
        raise _unencodable(JSON, error) from None


def _name(wanted: Any) -> str:
    return getattr(wanted, "__qualname__", None) or str(wanted)


_ENCODERS: dict[str, Encode] = {
    "": _encode_bytes,
    OCTET_STREAM: _encode_bytes,
    JSON: _encode_json,
    MSGPACK: _encode_msgpack,
    PROTOBUF: _encode_message,
    **dict.fromkeys(RPC_TYPES, encode_reply),
    TENSORS: _encode_tensors,
}


class EncodedList:
    """A list of values that are already encoded, as its own content type would encode it. It grows at its end.

    Values that arrive one by one are encoded while they are unchanged, and take no more room than their bytes.
    """

    __slots__ = ("_body", "_count", "_is_json")

    def __init__(self, content_type: str) -> None:
        """An empty list.

        Raises:
            ValueError: the content type carries no lists.
        """
        if not carries_lists(content_type):
            raise ValueError(f"{content_type} carries no lists")
        self._is_json = content_type == JSON
        self._body = bytearray()
        self._count = 0

    @property
    def size(self) -> int:
        """Bytes, but for those of the list's head."""
        return len(self._body)

    def append(self, payload: bytes) -> None:
        """One value more, encoded."""
        if self._is_json and self._count:
            self._body += b","
        self._body += payload
        self._count += 1

    def encoded(self) -> bytes:
        """The list."""
        if self._is_json:
            return b"[" + self._body + b"]"
        return array_head(self._count) + self._body


def carries_lists(content_type: str) -> bool:
    """Whether a list of any values is a value of this content type."""
    return content_type in {JSON, MSGPACK}
