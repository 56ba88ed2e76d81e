"""What annotations say of the tensors that a method takes and gives.

Invariants: what is not said is -1, or left out, and never guessed, but for one thing: an array of unknown type is said
to be FP32, as the protocol has no word for any. Nothing of a foreign annotation is raised.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any, Final, get_args, get_origin, get_type_hints, is_typeddict

import msgspec

from slotmesh.codec.array_types import array_type
from slotmesh.codec.signature import Signature, resolve_annotation
from slotmesh.codec.tensor_arguments import is_whole, whole_parameter
from slotmesh.codec.tensors import MAX_TENSORS, OUTPUT
from slotmesh.oip.datatypes import BYTES, OF_DTYPE
from slotmesh.oip.signatures import UNKNOWN_DIMENSION, MethodTensors, TensorType

_SCALARS: Final = {bool: "BOOL", int: "INT64", float: "FP64", str: BYTES, bytes: BYTES}
_LISTS: Final = {list, Sequence}
_UNKNOWN_TYPE: Final = "FP32"
_MAX_DEPTH: Final = 32


def method_tensors(
    function: Callable[..., Any], signature: Signature, *, yields: bool = False, batch_size: int = 0
) -> MethodTensors:
    """What the method takes and gives; `batch_size` is 0 where it is no batch method."""
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
        elif parameter.wanted is not Any and (told := _element(parameter.wanted)) is not None:
            datatype, shape = told
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
        told = [_element(each) for each in parts]
        if len(parts) != len(get_args(wanted)) or None in told:
            return ()
        return tuple(_named(f"{OUTPUT}{index}", each) for index, each in enumerate(told) if each is not None)
    if get_origin(wanted) in _LISTS and array_type((get_args(wanted) or (Any,))[0]) is not None:
        return ()  # as many outputs as there are arrays
    element = _element(wanted)
    return () if element is None else (_named(OUTPUT, element),)


def _row_of(wanted: Any) -> Any:
    """What an entry of a list that a batch method returns is; None where it returns something else."""
    return get_args(wanted)[0] if get_origin(wanted) in _LISTS and get_args(wanted) else None


def _members(wanted: Any) -> tuple[TensorType, ...]:
    """The tensors of a typed map, a dataclass or a struct; none of a plain map, which has any."""
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
    except Exception:  # noqa: BLE001  # whatever a foreign annotation raises, it says nothing then
        return ()
    told = {name: _element(each) for name, each in members.items()}
    return tuple(
        _named(name, each if each is not None else (_UNKNOWN_TYPE, (UNKNOWN_DIMENSION,))) for name, each in told.items()
    )


def _element(wanted: Any) -> tuple[str, tuple[int, ...]] | None:
    """Datatype and shape; None where the annotation says neither."""
    if (array := array_type(wanted)) is not None:
        return _datatype_of(array.dtype), (UNKNOWN_DIMENSION,)
    shape: tuple[int, ...] = ()
    for _ in range(_MAX_DEPTH):
        if get_origin(wanted) not in _LISTS or not get_args(wanted):
            break
        wanted, shape = get_args(wanted)[0], (*shape, UNKNOWN_DIMENSION)
    try:
        datatype = _SCALARS.get(wanted)
    except TypeError:  # it has no hash
        return None
    return None if datatype is None else (datatype, shape or (1,))


def _with_rows(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of many; a number alone has no axis of its own."""
    return (UNKNOWN_DIMENSION,) if shape == (1,) else (UNKNOWN_DIMENSION, *shape)


def _named(name: str, element: tuple[str, tuple[int, ...]]) -> TensorType:
    return TensorType(name=name, datatype=element[0], shape=element[1])


def _datatype_of(dtype: Any) -> str:
    return _UNKNOWN_TYPE if dtype is None else OF_DTYPE.get(dtype.str, _UNKNOWN_TYPE)


def _returned(function: Callable[..., Any], *, yields: bool) -> Any:
    """What a result is; None where it is not said."""
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
