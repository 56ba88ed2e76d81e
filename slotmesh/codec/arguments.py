"""Payloads <-> arguments: positional arrays, named maps, one bytes, one message.

Purpose: callers encode what they pass; a handler's method decodes and checks it against its annotations.
Invariants: a decoder is built once per method; what it returns can be passed to the method as it is, or DecodeError
names the argument. Nothing of the call is executed before its arguments are sound.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from slotmesh.calls.result_envelopes import RPC
from slotmesh.codec.arrays import is_array
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
from slotmesh.codec.rows import bytes_of_rows, msgpack_of_rows
from slotmesh.codec.structured import NO_NAMED, Arguments, DecodeArguments, refuse, structured_decoder
from slotmesh.codec.tensor_arguments import tensors_decoder
from slotmesh.codec.types.array_types import ArrayType, array_type
from slotmesh.codec.types.signature import Signature, read_signature
from slotmesh.codec.values import decoder, encode_each, encoder, is_message
from slotmesh.errors import Reason

_BYTES_TYPES: Final = frozenset({bytes, bytearray, memoryview})

# -- callers ------------------------------------------------------------------------------------------------------


def encode_arguments(content_type: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes:
    """Encodes what a caller passes: positional arguments as an array, named ones as a map.

    Raises:
        EncodeError (a TypeError): the content type cannot carry them; the message names the way out.
    """
    encode = encoder(content_type)
    if content_type in {MSGPACK, JSON}:
        if kwargs:
            if args:
                raise EncodeError(
                    f"got {len(args)} positional and {len(kwargs)} named arguments: a call carries one or the other; "
                    f"name all of them, or none"
                )
            return encode(kwargs)
        return encode(args)
    if kwargs and not args and content_type == TENSORS:
        return encode(kwargs)
    if kwargs or len(args) != 1:
        raise EncodeError(
            f"{content_type or OCTET_STREAM} carries exactly one positional argument, "
            f"got {len(args)} positional and {len(kwargs)} named ones"
        )
    if args[0] is None:
        raise EncodeError(f"{content_type or OCTET_STREAM} cannot carry None; {MSGPACK} carries values")
    return encode(args[0])


def encode_arguments_of_each(content_type: str, columns: Sequence[Iterable[Any]]) -> list[bytes]:
    """Encodes the arguments of a call for each row of `columns`, an iterable for each positional argument.

    Raises:
        EncodeError (a TypeError): the content type cannot carry a row.
        ValueError: the columns differ in length.
    """
    _check_columns(columns)
    if len(columns) == 1 and is_array(columns[0]) and (payloads := _of_rows(content_type, columns[0])) is not None:
        return payloads
    if content_type in {MSGPACK, JSON}:
        lists = [column if isinstance(column, list) else _items(column) for column in columns]
        if len(lists) > 1 and len(set(map(len, lists))) > 1:
            raise ValueError(f"the iterables differ in length: {', '.join(str(len(items)) for items in lists)}")
        return encode_each(content_type, zip(*lists, strict=True))
    if len(columns) != 1:
        raise EncodeError(f"{content_type or OCTET_STREAM} carries exactly one positional argument, got {len(columns)}")
    items = list(columns[0])
    if content_type in {OCTET_STREAM, ""} and set(map(type, items)) <= {bytes}:
        return items
    if any(item is None for item in items):
        raise EncodeError(f"{content_type or OCTET_STREAM} cannot carry None; {MSGPACK} carries values")
    return encode_each(content_type, items)


def _check_columns(columns: Sequence[Iterable[Any]]) -> None:
    if not columns:
        raise EncodeError("a map takes an iterable with an item for each call, or several, got none")
    for number, column in enumerate(columns, 1):
        if not isinstance(column, list):
            try:
                iter(column)
            except TypeError:
                kind = type(column).__name__
                raise EncodeError(
                    f"argument {number} of a map must be an iterable with an item for each call, got {kind}"
                ) from None


def _items(column: Iterable[Any]) -> list[Any]:
    """What is in the column; numbers of an array as Python's own, which is the same to those who read them."""
    if is_array(column) and column.ndim == 1 and column.dtype.kind in "biuf":  # type: ignore[attr-defined]
        numbers: list[Any] = column.tolist()  # type: ignore[attr-defined]
        return numbers
    return list(column)


def _of_rows(content_type: str, array: Any) -> list[bytes] | None:
    """The rows of an array as the one argument of a call each; None if they are encoded as any other values."""
    try:
        if content_type in {OCTET_STREAM, ""} and array.ndim:
            return bytes_of_rows(array)
        if content_type == MSGPACK and array.ndim > 1:
            return msgpack_of_rows(array, b"\x91")
    except (TypeError, ValueError) as error:
        raise EncodeError(f"{content_type or OCTET_STREAM} cannot carry this: {error}") from None
    return None


# -- handlers -----------------------------------------------------------------------------------------------------


class ArgumentsDecoder:
    """Decodes the payloads of one method's calls. Build it with `for_handler`."""

    __slots__ = ("_decoders", "_signature")

    def __init__(self, signature: Signature) -> None:
        self._signature = signature
        self._decoders: dict[str, DecodeArguments] = {
            OCTET_STREAM: _bytes_decoder(signature),
            JSON: structured_decoder(signature, JSON),
            MSGPACK: structured_decoder(signature, MSGPACK),
            PROTOBUF: _protobuf_decoder(signature),
            TENSORS: tensors_decoder(signature, batched=signature.batched),
        }
        if any(parameter.stacked is not None for parameter in signature.parameters):
            for content_type in (JSON, MSGPACK):
                self._decoders[content_type] = _rows_decoder(signature, self._decoders[content_type])
        self._decoders[""] = self._decoders[OCTET_STREAM]

    @classmethod
    def for_handler(cls, function: Callable[..., Any], *, batched: bool = False) -> ArgumentsDecoder:
        """For a function or a bound method. `batched`: it takes lists, one entry a call, or arrays, one row a call.

        Raises:
            TypeError: an annotation that no payload can become; the message names the parameter.
        """
        return cls(read_signature(function, batched=batched))

    @property
    def signature(self) -> Signature:
        """What the method takes."""
        return self._signature

    def decode(self, content_type: str, payload: bytes) -> Arguments:
        """Decodes and checks the arguments of one call.

        Raises:
            DecodeError: `failure` names the argument, or the content type is not supported.
        """
        return self.of(content_type)(payload)

    def of(self, content_type: str) -> DecodeArguments:
        """The function that decodes; take it once for a whole run.

        Raises:
            DecodeError: the content type is not known.
        """
        try:
            return self._decoders[content_type]
        except KeyError:
            raise DecodeError(
                unknown_content_type(content_type), reason=Reason.BAD_REQUEST, field="content_type"
            ) from None


def _bytes_decoder(signature: Signature) -> DecodeArguments:
    parameter = signature.single
    if parameter is None:
        return refuse(f"{OCTET_STREAM} gives one bytes argument, but it takes {signature.text}; send {MSGPACK}")
    array = parameter.stacked or array_type(parameter.wanted)
    if array is not None:
        if array.names_no_dtype:
            return refuse(f"args[0]: {OCTET_STREAM} gives bytes, which could be of several dtypes; send {MSGPACK}")
        return _elements_decoder(array)
    accepted = (parameter.wanted, *getattr(parameter.wanted, "__args__", ()))  # no set: not all of it has a hash
    if not any(each in (Any, object, *_BYTES_TYPES) for each in accepted):
        wanted = getattr(parameter.wanted, "__qualname__", None) or str(parameter.wanted)
        return refuse(f"args[0]: expected {wanted}, got bytes; {OCTET_STREAM} gives bytes, send {MSGPACK}")
    convert = parameter.wanted
    if convert in {bytearray, memoryview}:
        return lambda payload: ((convert(payload),), NO_NAMED)
    return lambda payload: ((payload,), NO_NAMED)


def _elements_decoder(array: ArrayType) -> DecodeArguments:
    """The payload is the elements of an array of one dimension."""

    def decode(payload: bytes) -> Arguments:
        try:
            return (array.of_bytes(payload),), NO_NAMED
        except ValueError as error:
            raise DecodeError(where(str(error), "args[0]")) from None

    return decode


def _rows_decoder(signature: Signature, decode: DecodeArguments) -> DecodeArguments:
    """Decodes a call of a method that takes rows of arrays: each such argument is an array."""
    positional = [(index, it.stacked) for index, it in enumerate(signature.positional) if it.stacked is not None]
    by_name = {it.name: it.stacked for it in signature.parameters if it.stacked is not None}

    def row_of(array: ArrayType, value: Any, root: str) -> Any:
        try:
            return array.of_value(value)
        except (TypeError, ValueError, OverflowError, MemoryError) as error:
            raise DecodeError(f"{where(str(error), root)}; it takes {signature.text}") from None

    def decode_rows(payload: bytes) -> Arguments:
        given, named = decode(payload)
        args = list(given)
        for index, array in positional:
            if index < len(args):
                args[index] = row_of(array, args[index], f"args[{index}]")
        if named:
            named = {
                name: value if (array_or_none := by_name.get(name)) is None else row_of(array_or_none, value, name)
                for name, value in named.items()
            }
        return tuple(args), named

    return decode_rows


def _protobuf_decoder(signature: Signature) -> DecodeArguments:
    parameter = signature.single
    if parameter is None or not is_message(parameter.wanted):
        return refuse(f"{PROTOBUF} needs one parameter annotated with a message class, but it takes {signature.text}")
    parse = decoder(PROTOBUF, parameter.wanted)
    return lambda payload: ((parse(payload),), NO_NAMED)


class RpcDecoder(ArgumentsDecoder):
    """Decodes the requests of one rpc of a user's own proto, each into a message of its class."""

    __slots__ = ()

    def __init__(self, signature: Signature, parse: Callable[[bytes], Any]) -> None:
        """`signature` is the method's."""
        super().__init__(signature)
        self._decoders = {RPC: lambda payload: (((parse(payload)),), NO_NAMED)}

    def of(self, content_type: str) -> Callable[[bytes], Arguments]:
        try:
            return self._decoders[content_type]
        except KeyError:
            raise DecodeError(
                "content_type: an rpc of its own proto takes one request, and is called at the router by that proto",
                reason=Reason.BAD_REQUEST,
                field="content_type",
            ) from None
