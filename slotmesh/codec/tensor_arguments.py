"""Tensors by name -> the arguments of a method: by the names of its parameters, or all of them as its one argument.

Purpose: as other content types, but for two things. A method whose one parameter is a map, a typed map, a dataclass or
a struct gets all tensors in it. A batch method gets rows: the first axis of each tensor is an entry a row, so that many
requests are concatenated; `rows_in` says how many rows a call has.
Invariants: a name that the method does not take, or one that it lacks, is refused, and so are tensors of one call with
different numbers of rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any, Final, get_origin, is_typeddict

import msgspec

from slotmesh.codec.array_types import array_type
from slotmesh.codec.arrays import is_array
from slotmesh.codec.content_types import MSGPACK
from slotmesh.codec.errors import DecodeError, where
from slotmesh.codec.msgpack import msgpack_decoder
from slotmesh.codec.signature import Parameter, Signature
from slotmesh.codec.structured import NO_NAMED, Arguments, DecodeArguments, by_name_decoder, named_decoder, refuse

_MAPS: Final = (dict, Mapping)
_SCALARS: Final = (int, float, bool, str, bytes)


def tensors_decoder(signature: Signature, *, batched: bool) -> DecodeArguments:
    """The decoder of one method, made at its first call: most methods never take tensors.

    `batched`: arguments are whole blocks of rows, arrays or lists.
    """
    made: list[DecodeArguments] = []

    def decode(payload: bytes) -> Arguments:
        if not made:
            made.append(_batched_decoder(signature) if batched else _decoder(signature))
        return made[0](payload)

    return decode


def whole_parameter(signature: Signature) -> Parameter | None:
    """The one parameter that takes all tensors; None where they go to parameters by their names."""
    single = signature.single
    if single is None or len(signature.parameters) != 1 or signature.more_named is not None:
        return None
    return single if is_whole(single.wanted) else None


def is_whole(wanted: Any) -> bool:
    """Whether an annotation means tensors by name."""
    if wanted in _MAPS or get_origin(wanted) in _MAPS:
        return True
    is_struct = isinstance(wanted, type) and (issubclass(wanted, msgspec.Struct) or hasattr(wanted, "model_validate"))
    return is_struct or is_typeddict(wanted) or (isinstance(wanted, type) and is_dataclass(wanted))


def names_in(wanted: Any) -> frozenset[str] | None:
    """The names that such an annotation has; None where any will do."""
    if is_typeddict(wanted):
        return frozenset(wanted.__annotations__)
    if isinstance(wanted, type) and issubclass(wanted, msgspec.Struct):
        return frozenset(wanted.__struct_encode_fields__)
    if isinstance(wanted, type) and is_dataclass(wanted):
        return frozenset(each.name for each in fields(wanted))
    return None


def rows_in(arguments: Arguments, signature: Signature) -> int:
    """How many rows the arguments of a call of a batch method have.

    Raises:
        DecodeError: it cannot be said, or they differ.
    """
    args, named = arguments
    names = [each.name for each in signature.parameters]
    given = [*zip(names, args, strict=False), *named.items()]
    counts: dict[str, int] = {}
    for name, value in given:
        if is_array(value) and not value.ndim:
            raise DecodeError(f"{name}: a tensor of a batch method has a first axis, its rows; got one of shape []")
        counts[name] = len(value)
    if len(set(counts.values())) > 1:
        told = ", ".join(f"{name} has {count}" for name, count in counts.items())
        raise DecodeError(f"tensors of one call must have the same number of rows: {told}")
    return next(iter(counts.values()), 0)


def _decoder(signature: Signature) -> DecodeArguments:
    whole = whole_parameter(signature)
    if whole is None:
        return _by_parameter(signature)
    decode_whole = msgpack_decoder(whole.wanted, may_import=False)
    known = names_in(whole.wanted)
    names_of = msgspec.msgpack.Decoder(dict[str, msgspec.Raw]).decode

    def decode(payload: bytes) -> Arguments:
        if known is not None and (strangers := sorted(names_of(payload).keys() - known)):
            raise DecodeError(f"object contains unknown field {strangers[0]}; it takes {', '.join(sorted(known))}")
        return (decode_whole(payload),), NO_NAMED

    return by_name_decoder(signature, decode)


def _by_parameter(signature: Signature) -> DecodeArguments:
    """Where a parameter takes one number or one text, a tensor of one element is that."""
    scalars = frozenset(each.name for each in signature.parameters if _is_scalar(each.wanted))
    if not scalars:
        return by_name_decoder(signature, named_decoder(signature, MSGPACK))
    widened = replace(
        signature,
        parameters=tuple(
            replace(each, wanted=each.wanted | list[each.wanted]) if each.name in scalars else each  # type: ignore[name-defined]
            for each in signature.parameters
        ),
    )
    decode = by_name_decoder(widened, named_decoder(widened, MSGPACK))
    order = [each.name for each in signature.parameters]

    def decode_one_each(payload: bytes) -> Arguments:
        args, named = decode(payload)
        return (
            tuple(_one(value, name) if name in scalars else value for name, value in zip(order, args, strict=False)),
            {name: _one(value, name) if name in scalars else value for name, value in named.items()},
        )

    return decode_one_each


def _is_scalar(wanted: Any) -> bool:
    return isinstance(wanted, type) and wanted in _SCALARS


def _one(value: Any, name: str) -> Any:
    if not isinstance(value, list):
        return value
    if len(value) != 1:
        raise DecodeError(f"{name}: expected a tensor of one element, got {len(value)}")
    return value[0]


def _batched_decoder(signature: Signature) -> DecodeArguments:
    """Blocks: arrays where the method takes arrays of rows, lists with an entry a row elsewhere."""
    if any(is_whole(each.wanted) for each in signature.parameters) and len(signature.parameters) == 1:
        return refuse("a batch method takes tensors by the names of its parameters: lists, or arrays of rows")
    parameters = [replace(each, wanted=_block_of(each)) for each in signature.parameters]
    blocks = replace(signature, parameters=tuple(parameters))
    decode = by_name_decoder(blocks, named_decoder(blocks, MSGPACK))
    of = {each.name: each for each in signature.parameters}
    order = [each.name for each in signature.parameters]

    def decode_blocks(payload: bytes) -> Arguments:
        args, named = decode(payload)
        return (
            tuple(_rows(value, of[name]) for name, value in zip(order, args, strict=False)),
            {name: _rows(value, of[name]) if name in of else value for name, value in named.items()},
        )

    return decode_blocks


def _block_of(parameter: Parameter) -> Any:
    if parameter.stacked is not None or parameter.wanted is Any or array_type(parameter.wanted) is not None:
        return Any
    return list[parameter.wanted]  # type: ignore[name-defined]  # made from what the annotation says


def _rows(value: Any, parameter: Parameter) -> Any:
    try:
        if parameter.stacked is not None:
            return parameter.stacked.of_value(value)
        if not is_array(value):
            if not isinstance(value, Sequence):
                raise TypeError(f"Expected `array`, got `{type(value).__name__}`")
            return value
        if (each := array_type(parameter.wanted)) is not None:
            return list(each.fit(value)) if value.ndim else value
        return value.tolist() if value.ndim == 1 else list(value) if value.ndim else value
    except (TypeError, ValueError, OverflowError, MemoryError) as error:
        raise DecodeError(where(str(error), parameter.name)) from None
