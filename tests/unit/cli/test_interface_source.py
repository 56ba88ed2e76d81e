from __future__ import annotations

import ast
import dataclasses
import datetime
import enum
import json
import sys
import types
import typing
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypedDict

import msgspec
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import slotmesh
from slotmesh.calls.method_outlines import MethodOutline
from slotmesh.cli.commands.stubs import _KINDS, _OF_INTERFACES, interface_source
from slotmesh.handlers.description import outline_of
from tests.support.examples import examples


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Image:
    pixels: list[float]
    title: str = ""
    parent: Image | None = None


class Tagged(pydantic.BaseModel):
    tags: list[str] = []


class Partial(TypedDict, total=False):
    size: int


class Dated(msgspec.Struct):
    day: datetime.date = datetime.date(2026, 1, 1)


class Cat(msgspec.Struct, tag=True):
    lives: int


class Dog(msgspec.Struct, tag=True):
    name: str


class Aliased(pydantic.BaseModel):
    name: str = pydantic.Field(alias="full-name")


def source_of(function: Callable[..., Any], endpoint: str = "e") -> str:
    return interface_source(endpoint, [outline_of(function.__name__, function, yields=False, is_batch=False)])


@pytest.mark.parametrize(
    ("annotation", "written"),
    [
        (int, "int"),
        (str | None, "str | None"),
        (bytes, "bytes"),
        (uuid.UUID, "uuid.UUID"),
        (datetime.timedelta, "datetime.timedelta"),
        (datetime.datetime, "datetime.datetime"),
        (list[datetime.datetime] | None, "list[datetime.datetime] | None"),
        (datetime.time, "datetime.time"),
        (Annotated[datetime.time, msgspec.Meta(tz=False)], "datetime.time"),
        (list[dict[str, float]], "list[dict[Any, float]]"),
        (dict[int, float], "dict[Any, float]"),
        (tuple[int, str], "tuple[int, str]"),
        (tuple[int, ...], "list[int]"),
        (frozenset[int], "set[int]"),
        (Color, 'Literal["blue", "red"]'),
        (Literal["a", 1], 'Literal[1, "a"]'),
        (Any, "Any"),
        (int | Any, "Any"),
        (Image, "Image"),
        (list[Image] | None, "list[Image] | None"),
        (Partial, "Partial"),
        (Cat, "Cat"),
        (Cat | Dog | None, "dict[str, Any] | None"),
        (Aliased, "dict[str, Any]"),
        (None, "None"),
    ],
)
def test_types(annotation: Any, written: str) -> None:
    def method(value: Any) -> Any: ...

    method.__annotations__.update({"value": annotation, "return": annotation})
    source = source_of(method)
    ast.parse(source)
    assert f"    def method(self, value: {written}) -> {written}: ..." in source


def test_objects_are_dataclasses_unless_fields_may_be_absent() -> None:
    def method(image: Image, tagged: Tagged, partial: Partial, dated: Dated) -> None: ...

    method.__annotations__.update(image=Image, tagged=Tagged, partial=Partial, dated=Dated)
    source = source_of(method)
    assert (
        """@dataclass(kw_only=True)
class Image:
    pixels: list[float]
    title: str = ""
    parent: Image | None = None


@dataclass(kw_only=True)
class Tagged:
    tags: list[str] = field(default_factory=list)


class Partial(TypedDict):
    size: NotRequired[int]


class Dated(TypedDict):
    day: NotRequired[datetime.date]
"""
        in source
    )
    assert "from dataclasses import dataclass, field\nfrom typing import NotRequired, TypedDict\n" in source


def test_parameters() -> None:
    def mixed(first: int, second: int = 1, *, third: int, **more: int) -> int:
        return first

    def by_position(a: int, b: str = "", /, c: int = 0) -> None: ...

    def open_ended(a: int, *more: str, b: int = 0) -> None: ...

    def by_name(*, a: Image) -> None: ...

    def same_name(args: int, *more: int) -> None: ...

    assert "(self, /, first: int, second: int = ..., *, third: int, **kwargs: int) -> int" in source_of(mixed)
    assert "(self, a: int, b: str = ..., /, c: int = ...) -> None" in source_of(by_position)
    assert "(self, a: int, *args: str, b: int = ...) -> None" in source_of(open_ended)
    assert "(self, *, a: Image) -> None" in source_of(by_name)
    assert "(self, *args: Any, **kwargs: Any) -> None" in source_of(same_name)
    assert "def unknown(self, *args: Any, **kwargs: Any) -> Any: ..." in interface_source(
        "e", [MethodOutline("unknown")]
    )


@pytest.mark.parametrize(
    ("endpoint", "name"),
    [
        ("carts", "Carts"),
        ("my-carts.v2", "MyCartsV2"),
        ("2nd", "Endpoint2nd"),
        ("any", "AnyInterface"),
        ("é", "Endpoint"),
    ],
)
def test_the_name_of_the_class(endpoint: str, name: str) -> None:
    assert f"class {name}(slotmesh.Interface[slotmesh.ClientT]):" in interface_source(endpoint, [MethodOutline("m")])


def test_names_of_interfaces_get_an_underscore() -> None:
    own = {name for name in vars(slotmesh.Interface) if not name.startswith("_")}
    assert own == _OF_INTERFACES
    source = interface_source("e", [MethodOutline(name) for name in (*own, "add", "add_", "__call__")])
    functions = {each.name for each in ast.walk(ast.parse(source)) if isinstance(each, ast.FunctionDef)}
    assert functions == {*(f"{name}_" for name in own), "add", "add__", "__call__"}


Fields = dataclasses.make_dataclass(
    "Fields",
    [
        ("uuid", uuid.UUID),
        ("datetime", datetime.timedelta),
        ("n", int),
        ("int", int, 5),
        ("field", str, "int"),
        ("str", str, ""),
        ("_str", str, ""),
        ("Image", Image | None, None),
        ("Literal", Literal["list", "int"], "int"),
    ],
)
"""Names of fields are names of types."""


class Listed(pydantic.BaseModel):
    list: typing.List[str] = []  # noqa: UP006 - the field has the name
    tags: typing.List[str] = []  # noqa: UP006
    default_factory: str = "list"
    field: int = 3


class HidingPartly(TypedDict, total=False):
    NotRequired: int
    int: int


HIDING = {"int": Image, "list": list[int], "uuid": uuid.UUID, "slotmesh": Any, "Image": Image, "Any": Any, "m": Fields}
HIDING |= {"Iterator": int, "partly": HidingPartly, "listed": Listed}


def hiding_source() -> str:
    """An interface with methods that have the names of types."""
    outlines = []
    for name, annotation in HIDING.items():

        def method(a: Any, /, b: Any, *more: Any) -> Any: ...

        method.__annotations__.update({"a": annotation, "b": int, "return": annotation})
        outlines.append(outline_of(name, method, yields=name == "Iterator", is_batch=False))
    return interface_source("hiding", outlines)


def test_members_that_are_named_like_types_do_not_hide_them() -> None:
    source = hiding_source()
    module = types.ModuleType("hiding")
    sys.modules["hiding"] = module
    try:
        exec(source, vars(module))  # noqa: S102 - what `slotmesh stubs` writes
        made = msgspec.convert(
            {"uuid": str(uuid.UUID(int=1)), "datetime": "PT1S", "n": 6, "Image": {"pixels": [1.0]}}, module.Fields
        )
        assert (made.uuid, made.datetime, made.n) == (uuid.UUID(int=1), datetime.timedelta(seconds=1), 6)
        assert (made.int, made.field, made.Image.pixels) == (5, "int", [1.0])
        assert module.Listed() == module.Listed(list=[], tags=[], default_factory="list", field=3)
        with pytest.raises(msgspec.ValidationError, match="Expected `int`"):
            msgspec.convert({"int": "a"}, module.HidingPartly)
    finally:
        del sys.modules["hiding"]


def test_sources_without_such_members_have_no_aliases() -> None:
    def method(image: Image, at: datetime.datetime) -> None: ...

    assert " as _" not in source_of(method)


NAMES = st.sampled_from(["a", "int", "_int", "list", "class", "self", "x y", "Any", "Image", '"""', "é", "#/", ""])
VALUES = st.none() | st.booleans() | st.integers() | st.text(max_size=3) | st.floats(allow_nan=False)
KINDS = st.sampled_from(["integer", "number", "string", "null", "array", "object", "other"])
LEAVES = (
    st.fixed_dictionaries({"type": KINDS}, optional={"format": NAMES, "default": VALUES})
    | st.fixed_dictionaries({"enum": st.lists(VALUES, max_size=3)})
    | st.fixed_dictionaries({"$ref": NAMES.map("#/$defs/{}".format)})
)


def objects(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    names = st.lists(NAMES, max_size=2)
    return st.fixed_dictionaries({"title": NAMES, "properties": st.dictionaries(NAMES, inner), "required": names})


SCHEMAS: st.SearchStrategy[Any] = st.recursive(
    LEAVES,
    lambda inner: (
        objects(inner)
        | st.fixed_dictionaries({"anyOf": st.lists(inner, max_size=3)})
        | st.fixed_dictionaries({"type": KINDS, "items": inner})
        | st.fixed_dictionaries({"type": KINDS, "prefixItems": st.lists(inner, max_size=2)})
        | st.fixed_dictionaries({"type": KINDS, "additionalProperties": inner})
    ),
    max_leaves=8,
)
PARAMETERS = VALUES | st.lists(
    VALUES
    | st.fixed_dictionaries(
        {"kind": st.sampled_from([*_KINDS, "other"])},
        optional={"name": NAMES, "required": st.booleans(), "schema": SCHEMAS},
    ),
    max_size=4,
)


@settings(max_examples=examples(50), deadline=None)
@given(objects(SCHEMAS), SCHEMAS, st.dictionaries(NAMES, SCHEMAS, max_size=3), PARAMETERS, NAMES, NAMES)
def test_any_schema_has_a_source_that_is_python(
    arguments: Any, result: Any, definitions: dict[str, Any], parameters: Any, method: str, endpoint: str
) -> None:
    parts = {"arguments": arguments, "result": result, "$defs": definitions, "parameters": parameters}
    schema = json.dumps(parts)
    ast.parse(interface_source(endpoint, [MethodOutline(method, schema=schema), MethodOutline("m")]))
