"""Dataclass fields that a payload leaves out are in a result that is the same object."""

from __future__ import annotations

import collections
import dataclasses
import json
from collections.abc import Iterable
from typing import Any, Generic, NamedTuple, NewType, TypedDict, TypeVar

import msgspec
import pytest

from slotmesh.codec import JSON, MSGPACK, ArgumentsDecoder, Columns, ColumnsDecoder, decode, decoder, encode
from slotmesh.codec.types.dataclass_defaults import with_defaults
from tests.unit.codec.taking import method_taking

T = TypeVar("T")


@dataclasses.dataclass
class Settings:
    retries: int = 3
    name: str = "x"
    tags: list[str] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class Frozen:
    retries: int = 3


@dataclasses.dataclass(frozen=True, slots=True)
class Slots:
    retries: int = 3


@dataclasses.dataclass(frozen=True)
class Derived(Slots):
    more: int = 4


@dataclasses.dataclass
class Box(Generic[T]):
    content: T
    count: int = 1


@dataclasses.dataclass
class Tree:
    children: list[Tree] = dataclasses.field(default_factory=list)
    parent: Tree | None = None
    size: int = 0


class Struct(msgspec.Struct):
    frozen: Frozen
    count: int = 1


class Row(NamedTuple):
    frozen: Frozen


class Typed(TypedDict, total=False):
    frozen: Frozen
    absent: Frozen


class Many(list[Frozen]):
    pass


Named = NewType("Named", Frozen)
SETTINGS = {"retries": 3, "name": "x", "tags": []}
FROZEN = {"retries": 3}
LEAF: dict[str, Any] = {"children": [], "parent": None, "size": 0}
CASES: list[tuple[Any, Any, Any]] = [
    (Settings, {}, SETTINGS),
    (Settings, {"name": "new"}, {**SETTINGS, "name": "new"}),
    (Settings | None, {}, SETTINGS),
    (Settings | list[Frozen], [{}], [FROZEN]),
    (Frozen, {}, FROZEN),
    (Named, {}, FROZEN),
    (Slots, {}, FROZEN),
    (Derived, {}, {"retries": 3, "more": 4}),
    (Derived, {"retries": 5}, {"retries": 5, "more": 4}),
    (list[Frozen], [{}, {"retries": 1}], [FROZEN, {"retries": 1}]),
    (set[Frozen], [{}], [FROZEN]),
    (tuple[Frozen, ...], [{}, {}], [FROZEN, FROZEN]),
    (tuple[int, Frozen], [1, {}], [1, FROZEN]),
    (dict[str, Frozen], {"a": {}}, {"a": FROZEN}),
    (Box[Frozen], {"content": {}}, {"content": FROZEN, "count": 1}),
    (Box[int], {"content": 2}, {"content": 2, "count": 1}),
    (Tree, {"children": [{"parent": {}}]}, {**LEAF, "children": [{**LEAF, "parent": LEAF}]}),
    (Struct, {"frozen": {}}, {"frozen": FROZEN, "count": 1}),
    (Row, [{}], [FROZEN]),
    (Typed, {"frozen": {}}, {"frozen": FROZEN}),
    (Many, [{}], [FROZEN]),
    (collections.deque[Frozen], [{}], [FROZEN]),
    (dict[str, Iterable[Frozen]], {"a": [{}]}, {"a": [FROZEN]}),
]
cases = pytest.mark.parametrize(("wanted", "given", "expected"), CASES, ids=lambda value: str(value)[:40])
structured = pytest.mark.parametrize("content_type", [JSON, MSGPACK])


@structured
@cases
def test_arguments_that_are_returned_have_all_fields(wanted: Any, given: Any, expected: Any, content_type: str) -> None:
    takes = ArgumentsDecoder.for_handler(method_taking(wanted))
    for arguments in ([given], {"it": given}):
        ((found,), _) = takes.decode(content_type, encode(content_type, arguments))
        assert decode(content_type, encode(content_type, found)) == expected
        assert decode(content_type, encode(content_type, [found])) == [expected]


@structured
@cases
def test_results_of_a_wanted_type_have_all_fields(wanted: Any, given: Any, expected: Any, content_type: str) -> None:
    found = decoder(content_type, wanted)(encode(content_type, given))
    assert decode(content_type, encode(content_type, found)) == expected


@structured
def test_calls_of_a_batch_have_all_fields(content_type: str) -> None:
    async def method(it: list[Settings]) -> list[Settings]:
        return it

    takes = ColumnsDecoder(ArgumentsDecoder.for_handler(method, batched=True), takes_bytes=False)
    (columns,) = takes.split(content_type, [encode(content_type, [{}])] * 2)
    assert isinstance(columns, Columns)
    assert decode(content_type, encode(content_type, columns.args)) == [[SETTINGS] * 2]


@structured
def test_optional_and_further_arguments_have_all_fields(content_type: str) -> None:
    def method(first: Frozen, second: Frozen | None = None, *more: Frozen, **named: Frozen) -> None: ...

    takes = ArgumentsDecoder.for_handler(method)
    args, _ = takes.decode(content_type, encode(content_type, [{}, {}, {}]))
    assert decode(content_type, encode(content_type, args)) == [FROZEN] * 3
    args, named = takes.decode(content_type, encode(content_type, {"first": {}, "other": {}}))
    assert decode(content_type, encode(content_type, [*args, *named.values()])) == [FROZEN] * 2


def test_numbers_that_are_parsed_slowly_change_nothing() -> None:
    payload = json.dumps([{}, [1e308] * 400]).encode()
    found, _ = decoder(JSON, tuple[Frozen, list[float]])(payload)
    assert vars(found) == FROZEN


def test_objects_may_be_nested_as_deeply_as_msgspec_decodes() -> None:
    payload = b'{"parent":' * 500 + b"{}" + b"}" * 500
    found = decoder(JSON, Tree)(payload)
    for _ in range(500):
        assert vars(found).keys() == LEAF.keys()
        found = found.parent


@pytest.mark.parametrize("wanted", [Any, int, list[float], dict[str, Any], Struct | None, Slots, list[Row]])
def test_types_without_such_fields_are_decoded_as_before(wanted: Any) -> None:
    has_some = wanted in (Struct | None, list[Row])
    assert (with_defaults(bytes, wanted) is bytes) is not has_some


def test_only_values_that_may_hold_such_fields_are_visited() -> None:
    class Numbers(list[float]):
        def __iter__(self) -> Any:
            raise AssertionError("visited")

    value = (Frozen.__new__(Frozen), Numbers([1.0]))
    assert with_defaults(lambda _: value, tuple[Frozen, list[float]])(b"") is value
    assert vars(value[0]) == FROZEN
