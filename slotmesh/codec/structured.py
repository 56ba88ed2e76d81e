"""JSON and msgpack -> arguments: an array of positional ones or a map of named ones, checked by msgspec.

Invariants: msgspec's decoders are built once per method. The first byte decides between array and map, so that one of
two decoders runs, once. Arguments that are left out keep the method's own defaults.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import UNSET

from slotmesh.codec.arrays import BrokenArray
from slotmesh.codec.content_types import JSON, DecodeError, where
from slotmesh.codec.decoding_bounds import json_decoder
from slotmesh.codec.msgpack import decode_again, msgpack_decoder
from slotmesh.codec.types.annotations import way_out
from slotmesh.codec.types.signature import Parameter, Signature
from slotmesh.user_code import described, forget_call, text_of

Arguments = tuple[tuple[Any, ...], Mapping[str, Any]]
"""To be passed as `method(*arguments[0], **arguments[1])`."""

DecodeArguments = Callable[[bytes], Arguments]
"""Raises DecodeError."""

NO_NAMED: Final[Mapping[str, Any]] = MappingProxyType({})
"""Shared by all that have no named arguments."""

_MSGPACK_ARRAY: Final = frozenset({*range(0x90, 0xA0), 0xDC, 0xDD})
_MSGPACK_MAP: Final = frozenset({*range(0x80, 0x90), 0xDE, 0xDF})

_UNDECODABLE = (msgspec.DecodeError, BrokenArray, RecursionError, UnicodeDecodeError)


def structured_decoder(signature: Signature, content_type: str) -> DecodeArguments:
    """The decoder of one method for JSON or msgpack.

    Raises:
        TypeError: an annotation that no payload can become.
    """
    positional = _positional_decoder(signature, content_type)
    named = named_decoder(signature, content_type)
    return _guarded(positional, named, signature, _FORM_OF_JSON if content_type == JSON else _FORM_OF_MSGPACK)


def by_name_decoder(signature: Signature, decode: DecodeArguments) -> DecodeArguments:
    """A decoder of msgpack that takes a map, for `decode`, and no array."""
    positional = refuse(f"tensors are given by name: the top level must be a map; it takes {signature.text}")
    return _guarded(positional, decode, signature, _FORM_OF_MSGPACK)


def row_decoder(signature: Signature, content_type: str) -> Callable[[bytes], tuple[Any, ...]] | None:
    """Decodes calls that give exactly the required arguments, by position, without a step in Python.

    None if there are no such calls. It raises msgspec's own errors; `structured_decoder` decodes all others.
    """
    required = [parameter for parameter in signature.parameters if parameter.required]
    if not required or any(not parameter.positional for parameter in required):
        return None
    return _decoder(tuple[tuple(parameter.wanted for parameter in required)], content_type, required)  # type: ignore[misc]


def refuse(message: str) -> DecodeArguments:
    """The decoder of what can never be."""

    def refuse(_payload: bytes) -> Arguments:
        raise DecodeError(message)

    return refuse


class _Form(NamedTuple):
    """JSON or msgpack."""

    name: str
    first_of: Callable[[bytes], int]
    array: frozenset[int]
    map_: frozenset[int]
    """First bytes of an array, and of a map."""
    again: Callable[[DecodeArguments, bytes], Arguments]
    parse: Callable[..., Any]


def _guarded(positional: DecodeArguments, named: DecodeArguments, signature: Signature, form: _Form) -> DecodeArguments:
    first_of, array, map_, again = form.first_of, form.array, form.map_, form.again

    def decode(payload: bytes) -> Arguments:
        try:
            first = first_of(payload)
        except IndexError:
            raise DecodeError(f"the payload is empty; it takes {signature.text}") from None
        if first in array:
            decode_given, root = positional, "args"
        elif first in map_:
            decode_given, root = named, ""
        else:
            top_level = "the top level must be an array of positional arguments or a map of named ones"
            raise DecodeError(f"{_problem_of(form, payload) or top_level}; it takes {signature.text}")
        try:
            try:
                return decode_given(payload)
            except _UNDECODABLE:
                return again(decode_given, payload)
        except _UNDECODABLE as error:
            # What is malformed is so as a whole; what is of another type is so somewhere in it.
            mistyped = isinstance(error, msgspec.ValidationError)
            message = ("" if mistyped else _problem_of(form, payload)) or where(text_of(error), root)
            forget_call(error)
        except DecodeError:
            raise
        except BaseException as error:  # noqa: BLE001 - types of the user's own may raise anything, SystemExit, too
            message = f"{root or 'arguments'}: {described(error)}"
            forget_call(error)
        raise DecodeError(f"{message}; it takes {signature.text}")

    return decode


def _as_it_was(decode: DecodeArguments, payload: bytes) -> Arguments:
    return decode(payload)


def _first_of_msgpack(payload: bytes) -> int:
    return payload[0]


def _first_of_json(payload: bytes) -> int:
    first = payload[0]
    return first if first > 0x20 else payload.lstrip()[0]


def _problem_of(form: _Form, payload: bytes) -> str:
    """Why the bytes are no value of the form at all; empty if they are one."""
    try:
        form.parse(payload, type=msgspec.Raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        text = text_of(error)
        if "truncated" not in text:
            return text
        if form is _FORM_OF_JSON and (half := _HALF_OF_A_PAIR.search(payload, max(len(payload) - _PAIR_BYTES, 0))):
            return f"JSON is malformed: unexpected end of escaped utf-16 surrogate pair (byte {half.start()})"
        return f"{form.name} is malformed: it ends at byte {len(payload)}, before it is complete"
    return ""


_PAIR_BYTES: Final = 12
"""If fewer bytes follow the first half of a pair than the second one needs, msgspec calls the payload truncated."""
_HALF_OF_A_PAIR: Final = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}[^\\]")


_FORM_OF_JSON: Final = _Form("JSON", _first_of_json, frozenset(b"["), frozenset(b"{"), _as_it_was, msgspec.json.decode)
_FORM_OF_MSGPACK: Final = _Form(
    "MessagePack", _first_of_msgpack, _MSGPACK_ARRAY, _MSGPACK_MAP, decode_again, msgspec.msgpack.decode
)


# -- by position --------------------------------------------------------------------------------------------------


def _positional_decoder(signature: Signature, content_type: str) -> DecodeArguments:
    missing = [it.name for it in signature.parameters if it.required and not it.positional]
    if missing:
        return refuse(f"{', '.join(missing)}: can be given by name only; it takes {signature.text}")
    parameters = signature.positional
    if signature.more_positional is not None:
        return _open_ended(parameters, signature.more_positional, content_type)
    if all(parameter.required for parameter in parameters):
        exact = _decoder(tuple[tuple(parameter.wanted for parameter in parameters)], content_type, parameters)  # type: ignore[misc]
        return lambda payload: (exact(payload), NO_NAMED)
    row = _struct(parameters, array_like=True)
    decode = _decoder(row, content_type, parameters)
    astuple = msgspec.structs.astuple
    return lambda payload: (_given(astuple(decode(payload))), NO_NAMED)


def _given(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Without what was left out at the end."""
    return values[: _first_unset(values)] if values[-1] is UNSET else values


def _first_unset(values: Sequence[Any]) -> int:
    """Where the first one is that was left out. By identity: arrays answer `==` with an array."""
    return next((index for index, value in enumerate(values) if value is UNSET), len(values))


def _open_ended(parameters: Sequence[Parameter], rest: Any, content_type: str) -> DecodeArguments:
    """`*args`: the parts are split raw, then checked one by one, as msgspec has no type for `int, then any str`."""
    split = _splitter(list[msgspec.Raw], content_type)
    decoders = [_decoder(parameter.wanted, content_type, (parameter,)) for parameter in parameters]
    decode_rest = _decoder(rest, content_type, ())
    required = sum(parameter.required for parameter in parameters)

    def decode(payload: bytes) -> Arguments:
        parts = split(payload)
        if len(parts) < required:
            raise DecodeError(f"args: expected at least {required}, got {len(parts)}")
        # No generator: a StopIteration of a type of the user's own would end it.
        given = [
            _part(decoders[index] if index < len(decoders) else decode_rest, part, f"args[{index}]")
            for index, part in enumerate(parts)
        ]
        return tuple(given), NO_NAMED

    return decode


def _part(decode: Callable[[Any], Any], part: msgspec.Raw, root: str) -> Any:
    try:
        try:
            return decode(part)
        except (BrokenArray, msgspec.ValidationError):
            return decode_again(decode, part)
    except msgspec.ValidationError as error:
        raise DecodeError(where(str(error), root)) from None


# -- by name ------------------------------------------------------------------------------------------------------


def named_decoder(signature: Signature, content_type: str) -> DecodeArguments:
    """The decoder of a map of named arguments, which is one; it raises msgspec's own errors, too."""
    unreachable = [it.name for it in signature.parameters if it.required and not it.named]
    if unreachable:
        return refuse(f"{', '.join(unreachable)}: can be given by position only; it takes {signature.text}")
    parameters = [parameter for parameter in signature.parameters if parameter.named]
    if signature.more_named is not None:
        return _open_named(parameters, signature.more_named, content_type)
    names = [parameter.name for parameter in parameters]
    # Those that can be given by position are, so that a method of one argument gets it the same way always.
    leading = (
        sum(parameter.positional for parameter in parameters) if len(parameters) == len(signature.parameters) else 0
    )
    decode = _decoder(_struct(parameters, array_like=False), content_type, parameters)
    astuple = msgspec.structs.astuple

    def decode_named(payload: bytes) -> Arguments:
        values = astuple(decode(payload))
        stop = _first_unset(values[:leading])
        rest = {name: value for name, value in zip(names[stop:], values[stop:], strict=True) if value is not UNSET}
        return values[:stop], rest or NO_NAMED

    return decode_named


def _open_named(parameters: Sequence[Parameter], rest: Any, content_type: str) -> DecodeArguments:
    """`**kwargs`: split raw, then checked one by one."""
    split = _splitter(dict[str, msgspec.Raw], content_type)
    decoders = {parameter.name: _decoder(parameter.wanted, content_type, (parameter,)) for parameter in parameters}
    decode_rest = _decoder(rest, content_type, ())
    required = [parameter.name for parameter in parameters if parameter.required]

    def decode(payload: bytes) -> Arguments:
        parts = split(payload)
        for name in required:
            if name not in parts:
                raise DecodeError(f"object missing required field {name}")
        return (), {name: _part(decoders.get(name, decode_rest), part, name) for name, part in parts.items()}

    return decode


# -- msgspec ------------------------------------------------------------------------------------------------------


def _struct(parameters: Sequence[Parameter], *, array_like: bool) -> type[msgspec.Struct]:
    """A struct of the parameters. Its fields have names of their own: a parameter may be called anything."""
    fields: list[Any] = [
        (f"p{index}", parameter.wanted) if parameter.required else (f"p{index}", parameter.wanted, UNSET)
        for index, parameter in enumerate(parameters)
    ]
    return msgspec.defstruct(
        "Arguments",
        fields,
        array_like=array_like,
        kw_only=not array_like,
        forbid_unknown_fields=True,
        rename={f"p{index}": parameter.name for index, parameter in enumerate(parameters)},
    )


def _splitter(wanted: Any, content_type: str) -> Callable[[bytes], Any]:
    """Into parts that are not decoded yet."""
    return msgspec.json.Decoder(wanted).decode if content_type == JSON else msgspec.msgpack.Decoder(wanted).decode


def _decoder(wanted: Any, content_type: str, parameters: Sequence[Parameter]) -> Callable[[Any], Any]:
    try:
        if content_type == JSON:
            return json_decoder(wanted)
        return msgpack_decoder(wanted, may_import=False)
    except TypeError as error:
        for parameter in parameters if len(parameters) > 1 else ():
            _decoder(parameter.wanted, content_type, (parameter,))
        names = ", ".join(parameter.name for parameter in parameters) or "the arguments"
        raise TypeError(
            f"the annotation of {names} is nothing that {content_type} can become: {way_out(error)}"
        ) from None
