"""Types of results and of parameters by content type: each is carried exactly, or refused when the method is read."""

from __future__ import annotations

import collections
import collections.abc
import dataclasses
import enum
import fractions
import ipaddress
import numbers
import pathlib
import types
import typing
from collections.abc import Callable, Iterator
from typing import Any, Generic, NamedTuple, TypedDict, TypeVar

import msgspec
import numpy as np
import pydantic
import pytest

from slotmesh.codec import (
    JSON,
    MSGPACK,
    TENSORS,
    ArgumentsDecoder,
    EncodeError,
    decode,
    decoder,
    encode,
    encode_arguments,
)
from tests.unit.codec.taking import method_taking

T = TypeVar("T")


class Text(str):
    __slots__ = ()

    def __str__(self) -> str:
        return "overridden"


class Number(int):
    def __int__(self) -> int:
        return -1


class Real(float):
    pass


class Octets(bytes):
    pass


class Row(list[float]):
    pass


class Table(dict[str, int]):
    pass


class Pair(tuple[int, str]):
    __slots__ = ()


class Bag(list[T], Generic[T]):
    pass


class Level(enum.IntEnum):
    LOW = 1


class Name(enum.StrEnum):
    A = "a"


class Point(NamedTuple):
    x: int
    y: int = 2


class Typed(TypedDict):
    x: int


@dataclasses.dataclass
class One:
    x: int


@dataclasses.dataclass
class Other:
    y: str


class Tagged(msgspec.Struct, tag=True):
    x: int


class AlsoTagged(msgspec.Struct, tag=True):
    y: str


class Untagged(msgspec.Struct):
    x: int


class AlsoUntagged(msgspec.Struct):
    y: str


class Vague:
    """Of which no payload says anything."""


STRUCTURED = pytest.mark.parametrize("content_type", [JSON, MSGPACK])
RESULTS: list[tuple[Any, Any]] = [
    (Text("a"), "a"),
    (Number(3), 3),
    (Real(1.5), 1.5),
    (Row([1.0]), [1.0]),
    (Table(a=1), {"a": 1}),
    (Pair((1, "a")), [1, "a"]),
    (Level.LOW, 1),
    (Name.A, "a"),
    (Point(1), [1, 2]),
    (range(3), [0, 1, 2]),
    (collections.deque([1, 2]), [1, 2]),
    ({"a": 1}.keys(), ["a"]),
    ({"a": 1}.values(), [1]),
    ({"a": 1}.items(), [["a", 1]]),
    ({1}, [1]),
    (frozenset({1}), [1]),
    (collections.defaultdict(int, a=1), {"a": 1}),
    (collections.OrderedDict(a=1), {"a": 1}),
    (collections.Counter("aa"), {"a": 2}),
    (collections.ChainMap({"a": 1}, {"b": 2}), {"a": 1, "b": 2}),
    (types.MappingProxyType({"a": 1}), {"a": 1}),
    (collections.UserDict(a=1), {"a": 1}),
    (collections.UserList([1]), [1]),
    (collections.UserString("a"), "a"),
    (pathlib.PurePosixPath("/a"), "/a"),
    (ipaddress.ip_address("1.2.3.4"), "1.2.3.4"),
    (np.longdouble(1.5), 1.5),
    ([np.float32(0.5), np.int8(1), np.bool_(True), np.str_("a")], [0.5, 1, True, "a"]),
    ({"nested": [range(2), Text("a")]}, {"nested": [[0, 1], "a"]}),
]


@STRUCTURED
@pytest.mark.parametrize(("value", "expected"), RESULTS, ids=lambda value: type(value).__name__)
def test_results_are_sent_as_what_they_are_made_of(value: Any, expected: Any, content_type: str) -> None:
    assert decode(content_type, encode(content_type, value)) == expected


def test_bytes_of_a_class_of_their_own_are_bytes() -> None:
    assert decode(MSGPACK, encode(MSGPACK, Octets(b"a"))) == b"a"
    assert decode(JSON, encode(JSON, Octets(b"a"))) == "YQ=="


async def coroutine() -> None: ...


async def values() -> Any:
    yield 1


@STRUCTURED
@pytest.mark.parametrize(
    ("value", "way_out"),
    [
        (1j, "real and imag"),
        (np.complex64(1j), "real and imag"),
        (np.clongdouble(1), "convert it"),
        (np.longdouble(1) / np.longdouble(3), "convert it"),
        (fractions.Fraction(1, 2), "dataclass"),
        (Vague(), "dataclass"),
        (iter([1]), "make it a list"),
        (map(str, [1]), "make it a list"),
        (values(), "yield its values"),
        (pydantic.SecretStr("a"), "get_secret_value"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_results_without_an_encoding_name_a_way_out(value: Any, way_out: str, content_type: str) -> None:
    with pytest.raises(EncodeError, match=way_out):
        encode(content_type, value)


@STRUCTURED
def test_a_coroutine_that_was_not_awaited_is_called_that(content_type: str) -> None:
    waiting = coroutine()
    with pytest.raises(EncodeError, match="coroutine has no encoding; await it"):
        encode(content_type, waiting)
    waiting.close()


PARAMETERS: list[tuple[Any, Any]] = [
    (Text, Text("a")),
    (Number, Number(3)),
    (Real, Real(1.0)),
    (Octets, Octets(b"\xff")),
    (Row, Row([1.0])),
    (Table, Table(a=1)),
    (Pair, Pair((1, "a"))),
    (Bag[bytes], Bag([b"\xff"])),
    (Level, Level.LOW),
    (Name, Name.A),
    (Point, Point(1)),
    (Typed, {"x": 1}),
    (typing.Iterable[int], [1]),
    (collections.abc.Iterable[bytes], [b"\xff"]),
    (collections.abc.Container[int], [1]),
    (collections.abc.Reversible[int], [1]),
    (collections.abc.Collection[int], [1]),
    (collections.abc.Sequence[int], [1]),
    (collections.abc.Mapping[str, int], {"a": 1}),
    (collections.deque[One], collections.deque([One(1)])),
    (collections.OrderedDict[str, bytes], collections.OrderedDict(a=b"\xff")),
    (collections.Counter[int], collections.Counter({1: 2})),
    (collections.ChainMap[str, int], collections.ChainMap({"a": 1})),
    (types.MappingProxyType[str, int], types.MappingProxyType({"a": 1})),
    (pathlib.Path, pathlib.Path("/a")),
    (ipaddress.IPv6Address, ipaddress.IPv6Address("::1")),
    (list[collections.abc.Iterable[int]], [[1]]),
    (dict[str, collections.deque[int]] | None, {"a": collections.deque([1])}),
    (Tagged | AlsoTagged, AlsoTagged("a")),
    (int | str, "a"),
    (One | None, None),
    (numbers.Number, 1.5),
    (typing.Hashable, 1),
    (object, [1]),
]


@STRUCTURED
@pytest.mark.parametrize(("wanted", "value"), PARAMETERS, ids=str)
def test_parameters_are_what_they_are_annotated_as(wanted: Any, value: Any, content_type: str) -> None:
    takes = ArgumentsDecoder.for_handler(method_taking(wanted))
    for payload in (encode_arguments(content_type, (value,), {}), encode_arguments(content_type, (), {"it": value})):
        ((found,), _) = takes.decode(content_type, payload)
        assert found == value
        assert type(found) is type(value)
    assert decoder(content_type, wanted)(encode(content_type, value)) == value


REFUSED: list[tuple[Any, str]] = [
    (complex, "take two numbers"),
    (range, r"list\[int\]"),
    (collections.defaultdict[str, int], "take a dict"),
    (Iterator[int], "take a list"),
    (typing.AsyncIterator[int], "take a list"),
    (Callable[[], int], "dataclass"),
    (Vague, "dataclass"),
    (list[Vague], "Vague"),
    (collections.deque[Vague], "Vague"),
    (dict[str, Vague | None], "Vague"),
    (np.number, "np.float64"),
    (np.ndarray[Any, np.dtype[np.object_]], "take an array of numbers"),
    (np.ndarray[Any, np.dtype[np.str_]], "take an array of numbers"),
    (One | Other, "tag=True"),
    (One | dict[str, int], "tag=True"),
    (Untagged | AlsoUntagged, "tag=True"),
    (str | bytes, "a parameter for each"),
    (set[int] | list[int], "a parameter for each"),
    (np.ndarray | list[float], "a parameter for each"),
    (pydantic.BaseModel, "name the model"),
]


@pytest.mark.parametrize(("wanted", "way_out"), REFUSED, ids=str)
def test_what_no_payload_can_become_is_refused_at_start_with_a_way_out(wanted: Any, way_out: str) -> None:
    with pytest.raises(TypeError, match=f"^(the annotation of )?it.*{way_out}"):
        ArgumentsDecoder.for_handler(method_taking(wanted))
    for content_type in (JSON, MSGPACK):
        with pytest.raises(TypeError, match=way_out):
            decoder(content_type, wanted)


def test_fields_of_a_dataclass_are_looked_at_too() -> None:
    inner = dataclasses.make_dataclass("Inner", [("it", list[Vague])])
    outer = dataclasses.make_dataclass("Outer", [("inner", inner)])
    with pytest.raises(TypeError, match="no payload can become a Vague"):
        ArgumentsDecoder.for_handler(method_taking(outer))


TENSOR_RESULTS: list[tuple[Any, str]] = [
    (Level.LOW, "int64"),
    (Number(3), "int64"),
    (Real(1.5), "float64"),
    ([Level.LOW, 2], "int64"),
    ([np.float32(0.5), np.float32(1)], "float64"),
    (range(3), "int64"),
    (collections.deque([1.5]), "float64"),
    ({1, 2}, "int64"),
    ([Text("a")], "object"),
    (Name.A, "object"),
]


@pytest.mark.parametrize(("value", "dtype"), TENSOR_RESULTS, ids=str)
def test_results_of_derived_types_are_tensors(value: Any, dtype: str) -> None:
    (tensor,) = decode(TENSORS, encode(TENSORS, value)).values()
    assert tensor.dtype.name == dtype


@pytest.mark.parametrize("value", [1j, Vague(), iter([1]), [Vague()], {"a": {"b": 1}}])
def test_what_is_no_tensor_is_refused(value: Any) -> None:
    with pytest.raises(EncodeError, match=r"tensor (output|a): expected"):
        encode(TENSORS, value)
