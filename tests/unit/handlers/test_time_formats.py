"""Schemas state the format of times, with a zone or without one, wherever they are."""

from __future__ import annotations

import datetime
import enum
import json
from collections import deque
from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple, TypedDict

import msgspec
import pytest

from slotmesh.codec import JSON, MSGPACK, decoder, encode
from slotmesh.handlers.description import outline_of

Aware = Annotated[datetime.datetime, msgspec.Meta(tz=True)]
Naive = Annotated[datetime.datetime, msgspec.Meta(tz=False)]
AT = {"type": "string", "format": "date-time"}
NONE = {"type": "null"}


class Color(enum.Enum):
    RED = "red"


@dataclass
class Event:
    text: str
    at: datetime.datetime
    times: list[datetime.time] = field(default_factory=list)
    next: Event | None = None


class Typed(TypedDict):
    at: datetime.datetime


class Pair(NamedTuple):
    text: str
    at: datetime.datetime


class Row(msgspec.Struct, array_like=True, tag=True):
    text: str
    at: datetime.datetime


class Named(msgspec.Struct, tag=True):
    at: datetime.datetime


class Other(msgspec.Struct, tag=True):
    at: str


def schema_of(annotation: Any) -> Any:
    def method() -> Any: ...

    method.__annotations__["return"] = annotation
    return json.loads(outline_of("method", method, yields=False, is_batch=False).schema)


@pytest.mark.parametrize(
    ("annotation", "expected"),
    [
        (datetime.datetime, AT),
        (Aware, AT),
        (Naive, AT),
        (Annotated[datetime.datetime, msgspec.Meta(title="t")], {**AT, "title": "t"}),
        (datetime.time, {"type": "string", "format": "time"}),
        (datetime.date, {"type": "string", "format": "date"}),
        (str, {"type": "string"}),
        (datetime.datetime | None, {"anyOf": [AT, NONE]}),
        (list[datetime.datetime], {"type": "array", "items": AT}),
        (list[datetime.datetime] | str | None, {"anyOf": [{"type": "array", "items": AT}, {"type": "string"}, NONE]}),
        (dict[str, datetime.datetime], {"type": "object", "additionalProperties": AT}),
        (deque[datetime.datetime], {"type": "array", "items": AT}),
    ],
    ids=str,
)
def test_formats(annotation: Any, expected: Any) -> None:
    found = schema_of(annotation)["result"]
    assert {key: _sorted(value) for key, value in found.items()} == {k: _sorted(v) for k, v in expected.items()}


def _sorted(value: Any) -> Any:
    return sorted(value, key=str) if isinstance(value, list) else value


def test_formats_of_parts_of_tuples() -> None:
    assert schema_of(tuple[str, datetime.datetime])["result"]["prefixItems"] == [{"type": "string"}, AT]


@pytest.mark.parametrize("annotation", [Event, Event | Color | int, list[Event | None], tuple[Event, ...]], ids=str)
def test_formats_of_fields(annotation: Any) -> None:
    properties = schema_of(annotation)["$defs"]["Event"]["properties"]
    assert properties["text"] == {"type": "string"}
    assert properties["at"] == AT
    assert properties["times"]["items"] == {"type": "string", "format": "time"}


def test_formats_of_other_classes() -> None:
    definitions = schema_of(tuple[Typed, Pair, Row, Named])["$defs"]
    assert definitions["Typed"]["properties"]["at"] == AT
    assert definitions["Pair"]["prefixItems"] == [{"type": "string"}, AT]
    assert definitions["Row"]["prefixItems"][-2:] == [{"type": "string"}, AT]
    assert definitions["Named"]["properties"]["at"] == AT


@pytest.mark.parametrize("annotation", [Named | Other, Other | Named], ids=str)
def test_a_text_of_another_class_of_a_union_has_no_format(annotation: Any) -> None:
    assert schema_of(annotation)["$defs"]["Other"]["properties"]["at"] == {"type": "string"}


@pytest.mark.parametrize("content_type", [JSON, MSGPACK])
@pytest.mark.parametrize("zone", [None, datetime.UTC])
def test_results_are_decoded_as_what_the_format_means(content_type: str, zone: datetime.tzinfo | None) -> None:
    for value in (datetime.datetime(2026, 1, 2, 3, tzinfo=zone), datetime.time(3, 4, tzinfo=zone)):
        assert decoder(content_type, type(value))(encode(content_type, value)) == value
