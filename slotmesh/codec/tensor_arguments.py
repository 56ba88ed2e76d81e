"""Tensors by name -> the arguments of a method, and the tensors that a method's annotations promise.

Purpose: as with other content types, tensors go to the parameters of their names, with two exceptions. A method whose
one parameter is a map, a typed map, a dataclass or a struct gets all tensors in it. A batch method gets rows: the first
axis of each tensor has an entry for each row, so that requests can be concatenated; `rows_in` counts the rows of a
call.
Invariants: a name that the method does not take, a missing one, and tensors of one call with different numbers of rows
are refused. In a method's description, an unknown dimension is -1 and an unknown tensor is left out. Nothing is
guessed, except that an array of unknown type is described as FP32, as the protocol has no word for "any". Errors that
foreign annotations raise are not raised here.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any, Final, get_args, get_origin, get_type_hints, is_typeddict

import msgspec

from slotmesh.calls.method_outlines import BYTES, OF_DTYPE, UNKNOWN_DIMENSION, MethodTensors, TensorType
from slotmesh.codec.arrays import is_array
from slotmesh.codec.content_types import MSGPACK, DecodeError, where
from slotmesh.codec.msgpack import msgpack_decoder
from slotmesh.codec.structured import NO_NAMED, Arguments, DecodeArguments, by_name_decoder, named_decoder, refuse
from slotmesh.codec.tensors import MAX_TENSORS, OUTPUT
from slotmesh.codec.types.array_types import array_type
from slotmesh.codec.types.signature import Parameter, Signature, resolve_annotation

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
    """The one parameter that takes all tensors; None if they go to parameters by their names."""
    single = signature.single
    if single is None or len(signature.parameters) != 1 or signature.more_named is not None:
        return None
    return single if is_whole(single.wanted) else None


def is_whole(wanted: Any) -> bool:
    """Whether an annotation stands for tensors by name."""
    if wanted in _MAPS or get_origin(wanted) in _MAPS:
        return True
    is_struct = isinstance(wanted, type) and (issubclass(wanted, msgspec.Struct) or hasattr(wanted, "model_validate"))
    return is_struct or is_typeddict(wanted) or (isinstance(wanted, type) and is_dataclass(wanted))


def names_in(wanted: Any) -> frozenset[str] | None:
    """The names that such an annotation has; None if it takes any."""
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
        DecodeError: an argument has no rows, or they have different numbers of them.
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
        counted = ", ".join(f"{name} has {count}" for name, count in counts.items())
        raise DecodeError(f"tensors of one call must have the same number of rows: {counted}")
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
    """For methods with a parameter that takes one number or one text: it gets a tensor of one element as that."""
    wanted = {each.name: each.wanted for each in signature.parameters}
    scalars = frozenset(name for name, it in wanted.items() if isinstance(it, type) and it in _SCALARS)
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


def _one(value: Any, name: str) -> Any:
    if not isinstance(value, list):
        return value
    if len(value) != 1:
        raise DecodeError(f"{name}: expected a tensor of one element, got {len(value)}")
    return value[0]


def _batched_decoder(signature: Signature) -> DecodeArguments:
    """Blocks of rows: arrays for parameters that take arrays of rows, lists with an entry for each row for others."""
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
    return list[parameter.wanted]  # type: ignore[name-defined]  # made from the annotation


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


_DATATYPES: Final = {bool: "BOOL", int: "INT64", float: "FP64", str: BYTES, bytes: BYTES}
_LISTS: Final = {list, Sequence}
_UNKNOWN_TYPE: Final = "FP32"
_MAX_DEPTH: Final = 32


def method_tensors(
    function: Callable[..., Any], signature: Signature, *, yields: bool = False, batch_size: int = 0
) -> MethodTensors:
    """The tensors that the method takes and returns; `batch_size` is 0 if it is not a batch method."""
    return MethodTensors(
        inputs=_inputs(signature)[:MAX_TENSORS],
        outputs=_outputs(_returned(function, yields=yields), batched=signature.batched)[:MAX_TENSORS],
        yields=yields,
        batch_size=batch_size,
    )


def _inputs(signature: Signature) -> tuple[TensorType, ...]:
    whole = None if signature.batched else whole_parameter(signature)
    if whole is not None:
        return _members(whole.wanted)
    found = []
    for parameter in signature.parameters:
        if not parameter.named:
            continue
        datatype = _UNKNOWN_TYPE
        shape: tuple[int, ...] = (UNKNOWN_DIMENSION,)
        if parameter.stacked is not None:
            datatype = _datatype_of(parameter.stacked.dtype)
        elif parameter.wanted is not Any and (element := _element(parameter.wanted)) is not None:
            datatype, shape = element
            shape = _with_rows(shape) if signature.batched else shape
        found.append(TensorType(name=parameter.name, datatype=datatype, shape=shape, optional=not parameter.required))
    return tuple(found)


def _outputs(wanted: Any, *, batched: bool) -> tuple[TensorType, ...]:
    if wanted is None:
        return ()
    if (row := _row_of(wanted) if batched else None) is not None:
        return tuple(replace(each, shape=_with_rows(each.shape)) for each in _outputs(row, batched=False))
    if is_whole(wanted):
        return _members(wanted)
    if get_origin(wanted) is tuple:
        parts = [each for each in get_args(wanted) if each is not ...]
        elements = [_element(each) for each in parts]
        if len(parts) != len(get_args(wanted)) or None in elements:
            return ()
        return tuple(_named(f"{OUTPUT}{index}", each) for index, each in enumerate(elements) if each is not None)
    if get_origin(wanted) in _LISTS and array_type((get_args(wanted) or (Any,))[0]) is not None:
        return ()  # as many outputs as there are arrays
    element = _element(wanted)
    return () if element is None else (_named(OUTPUT, element),)


def _row_of(wanted: Any) -> Any:
    """The type of an entry of the list that a batch method returns; None if it returns something else."""
    return get_args(wanted)[0] if get_origin(wanted) in _LISTS and get_args(wanted) else None


def _members(wanted: Any) -> tuple[TensorType, ...]:
    """The tensors of a typed map, a dataclass or a struct; empty for a plain map, which may have any."""
    try:
        if is_typeddict(wanted):
            members = get_type_hints(wanted)
        elif isinstance(wanted, type) and issubclass(wanted, msgspec.Struct):
            hints = get_type_hints(wanted)
            members = {
                name: hints[each]
                for name, each in zip(wanted.__struct_encode_fields__, wanted.__struct_fields__, strict=True)
            }
        elif isinstance(wanted, type) and is_dataclass(wanted):
            hints = get_type_hints(wanted)
            members = {each.name: hints[each.name] for each in fields(wanted)}
        else:
            return ()
    except Exception:  # noqa: BLE001  # a foreign annotation may raise anything, and describes nothing then
        return ()
    elements = {name: _element(each) for name, each in members.items()}
    return tuple(
        _named(name, each if each is not None else (_UNKNOWN_TYPE, (UNKNOWN_DIMENSION,)))
        for name, each in elements.items()
    )


def _element(wanted: Any) -> tuple[str, tuple[int, ...]] | None:
    """Datatype and shape; None if the annotation has neither."""
    if (array := array_type(wanted)) is not None:
        return _datatype_of(array.dtype), (UNKNOWN_DIMENSION,)
    shape: tuple[int, ...] = ()
    for _ in range(_MAX_DEPTH):
        if get_origin(wanted) not in _LISTS or not get_args(wanted):
            break
        wanted, shape = get_args(wanted)[0], (*shape, UNKNOWN_DIMENSION)
    try:
        datatype = _DATATYPES.get(wanted)
    except TypeError:  # not hashable
        return None
    return None if datatype is None else (datatype, shape or (1,))


def _with_rows(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of several rows; a number has no axis of its own."""
    return (UNKNOWN_DIMENSION,) if shape == (1,) else (UNKNOWN_DIMENSION, *shape)


def _named(name: str, element: tuple[str, tuple[int, ...]]) -> TensorType:
    return TensorType(name=name, datatype=element[0], shape=element[1])


def _datatype_of(dtype: Any) -> str:
    return _UNKNOWN_TYPE if dtype is None else OF_DTYPE.get(dtype.str, _UNKNOWN_TYPE)


def _returned(function: Callable[..., Any], *, yields: bool) -> Any:
    """The annotation of a result; None without one."""
    try:
        annotation = inspect.signature(function).return_annotation
    except (TypeError, ValueError):
        return None
    wanted = resolve_annotation(annotation, function)
    if wanted is Any or wanted is None:
        return None
    if not yields:
        return wanted
    origin = get_origin(wanted)
    is_many = isinstance(origin, type) and (issubclass(origin, Iterable) or issubclass(origin, AsyncIterator))
    return get_args(wanted)[0] if is_many and get_args(wanted) and not issubclass(origin, Mapping) else None
