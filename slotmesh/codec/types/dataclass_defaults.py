"""Defaults of dataclass fields that a payload left out, set on the decoded objects.

Purpose: msgspec leaves plain defaults on the class, and encodes only what an object holds itself, so that an object
returned as it arrived would lose these fields. Defaults of factories and of classes with slots, it sets itself.
Invariants: the annotation is read once. Only values in which such a dataclass can be are visited; for annotations
without one, the decoder is returned unchanged. Values are visited without recursion: they may be nested deeply.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec
from msgspec.inspect import (
    CollectionType,
    DataclassType,
    DictType,
    Metadata,
    NamedTupleType,
    StructType,
    TupleType,
    Type,
    TypedDictType,
    UnionType,
)

_Step = Callable[[Any], "Iterable[tuple[_Steps, Any]]"]
"""Completes a value, and returns the values in it with their own steps."""
_Steps = dict[type, _Step]
"""By the class of a value."""
_COLLECTIONS: Mapping[type, type] = {
    msgspec.inspect.ListType: list,
    msgspec.inspect.VarTupleType: tuple,
    msgspec.inspect.SetType: set,
    msgspec.inspect.FrozenSetType: frozenset,
}


def with_defaults(decode: Callable[[Any], Any], wanted: Any) -> Callable[[Any], Any]:
    """A function that decodes into `wanted`, and sets the defaults; `decode` itself if there are none to set."""
    steps = _steps_of(wanted)
    if not steps:
        return decode

    def decode_completely(payload: Any) -> Any:
        value = decode(payload)
        ahead: list[tuple[_Steps, Any]] = [(steps, value)]
        while ahead:
            known, each = ahead.pop()
            if (step := known.get(type(each))) is not None:
                ahead += step(each)
        return value

    return decode_completely


def _steps_of(wanted: Any) -> _Steps:
    try:
        info = msgspec.inspect.type_info(wanted)
    except Exception:  # noqa: BLE001 - reading a foreign type may raise anything; what is no type, the decoder reports
        return {}
    return _Reading().steps_of(info)


class _Reading:
    """Reads one annotation, whose classes may refer to each other."""

    def __init__(self) -> None:
        self._known: dict[int, _Steps] = {}

    def steps_of(self, info: Type) -> _Steps:
        """The steps of values of a type; empty if no such dataclass can be in them."""
        if not _has_defaults(info):
            return {}
        if (known := self._known.get(id(info))) is not None:
            return known
        steps = self._known[id(info)] = {}
        match info:
            case Metadata():
                steps |= self.steps_of(info.type)
            case UnionType():
                for each in info.types:
                    steps |= self.steps_of(each)
            case CollectionType():
                steps[_COLLECTIONS[type(info)]] = _each_step(self.steps_of(info.item_type))
            case TupleType():
                steps[tuple] = _parts_step([self.steps_of(each) for each in info.item_types])
            case DictType():
                steps[dict] = _values_step(self.steps_of(info.value_type))
            case TypedDictType():
                fields: list[tuple[str, _Steps]] = []
                steps[dict] = _entries_step(fields)  # before its fields are read: they may refer to it
                fields += self._fields(info)
            case StructType() | DataclassType() | NamedTupleType():
                kind = getattr(info.cls, "__origin__", info.cls)
                fields = []
                steps[kind] = _fields_step(_plain_defaults(info), fields)
                fields += self._fields(info)
            case _:
                pass
        return steps

    def _fields(self, info: Any) -> list[tuple[str, _Steps]]:
        return [(each.name, steps) for each in info.fields if (steps := self.steps_of(each.type))]


def _has_defaults(info: Type) -> bool:
    """Whether a dataclass with defaults that msgspec does not set is part of the type."""
    seen: set[int] = set()
    ahead = [info]
    while ahead:
        each = ahead.pop()
        if id(each) not in seen:
            seen.add(id(each))
            if _plain_defaults(each):
                return True
            ahead += _parts(each)
    return False


def _parts(info: Type) -> list[Type]:
    match info:
        case Metadata():
            return [info.type]
        case UnionType():
            return list(info.types)
        case CollectionType():
            return [info.item_type]
        case TupleType():
            return list(info.item_types)
        case DictType():
            return [info.value_type]
        case TypedDictType() | StructType() | DataclassType() | NamedTupleType():
            return [each.type for each in info.fields]
        case _:
            return []


def _plain_defaults(info: Type) -> dict[str, Any]:
    """Defaults that are attributes of the class, by field."""
    if not isinstance(info, DataclassType):
        return {}
    kind = getattr(info.cls, "__origin__", info.cls)
    return {
        each.name: each.default
        for each in info.fields
        if each.default is not msgspec.NODEFAULT
        and hasattr(kind, each.name)
        and not inspect.isdatadescriptor(inspect.getattr_static(kind, each.name))  # a slot
    }


def _each_step(steps: _Steps) -> _Step:
    return lambda value: [(steps, each) for each in value]


def _parts_step(parts: list[_Steps]) -> _Step:
    return lambda value: zip(parts, value, strict=True)


def _values_step(steps: _Steps) -> _Step:
    return lambda value: [(steps, each) for each in value.values()]


def _entries_step(fields: list[tuple[str, _Steps]]) -> _Step:
    return lambda value: [(steps, value[name]) for name, steps in fields if name in value]


def _fields_step(defaults: dict[str, Any], fields: list[tuple[str, _Steps]]) -> _Step:
    pairs = tuple(defaults.items())

    def complete(value: Any) -> Iterable[tuple[_Steps, Any]]:
        if pairs:
            held = value.__dict__  # also of frozen classes
            for name, default in pairs:
                if name not in held:
                    held[name] = default
        return [(steps, getattr(value, name)) for name, steps in fields] if fields else ()

    return complete
