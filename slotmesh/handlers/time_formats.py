"""Formats of times in JSON Schemas made by msgspec, which states them only of times that must have a zone.

Invariant: only schemas of the annotated times change. Unions of several classes are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec.inspect import (
    CollectionType,
    DataclassType,
    DateTimeType,
    DictType,
    Metadata,
    NamedTupleType,
    StructType,
    TimeType,
    TupleType,
    Type,
    TypedDictType,
    UnionType,
)

_CLASSES = StructType | DataclassType | NamedTupleType | TypedDictType


def add_time_formats(info: Type, schema: dict[str, Any], definitions: Mapping[str, dict[str, Any]]) -> None:
    """Adds `date-time` and `time` in the schema of a type, and in the definitions that it references."""
    seen: set[str] = set()
    ahead: list[tuple[Type, Any]] = [(info, schema)]
    while ahead:
        each, its = ahead.pop()
        while isinstance(each, Metadata):
            each = each.type
        if not isinstance(its, dict):
            continue
        if "$ref" in its:
            name = its["$ref"].rpartition("/")[2]
            if name in seen:
                continue
            seen.add(name)
            its = definitions.get(name, {})
        if isinstance(each, DateTimeType | TimeType):
            its.setdefault("format", "date-time" if isinstance(each, DateTimeType) else "time")
        ahead += _parts(each, its)


def _parts(info: Type, schema: Mapping[str, Any]) -> Iterable[tuple[Type, Any]]:
    """The types in a type, each with its schema."""
    listed = schema.get("prefixItems", [])
    match info:
        case CollectionType():
            return [(info.item_type, schema.get("items"))]
        case DictType():
            return [(info.value_type, schema.get("additionalProperties"))]
        case TupleType():
            return zip(info.item_types, listed, strict=False)
        case UnionType():
            return [(each, it) for each in info.types for it in schema.get("anyOf", []) if _is_of(each, it, info)]
        case StructType() | DataclassType() | NamedTupleType() | TypedDictType():
            if listed:  # the tag of a struct is the first
                return zip([each.type for each in info.fields], listed[-len(info.fields) :], strict=False)
            properties = schema.get("properties", {})
            return [(each.type, properties.get(each.encode_name)) for each in info.fields]
        case _:
            return []


def _is_of(info: Type, schema: Mapping[str, Any], union: UnionType) -> bool:
    """Whether this is the schema of a member of the union, which has one text, one list, and one map at most."""
    while isinstance(info, Metadata):
        info = info.type
    match info:
        case DateTimeType() | TimeType():
            return schema.get("type") == "string"
        case CollectionType() | TupleType():
            return schema.get("type") == "array"
        case DictType():
            return schema.get("type") == "object"
        case StructType() | DataclassType() | NamedTupleType() | TypedDictType():
            return "$ref" in schema and sum(isinstance(each, _CLASSES) for each in union.types) == 1
        case _:
            return False
