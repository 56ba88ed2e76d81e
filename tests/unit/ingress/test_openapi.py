"""OpenAPI documents of what handlers offer."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable
from typing import Annotated, Any

import msgspec
import pydantic

from ingress_service.core.openapi import DescribedEndpoint, DescribedMethod, openapi_document
from slotmesh.calls.method_outlines import MethodOutline, fitting
from slotmesh.handlers.description import MAX_SCHEMA_CHARS, outline_of
from slotmesh.spec.routes import Route


class User(msgspec.Struct):
    name: str
    age: int = 0


async def find(name: str, limit: int = 10) -> list[User]:
    raise NotImplementedError


async def follow(user: User) -> AsyncIterator[User]:
    yield user


def odd(value: "NoSuchType", *more: Any) -> object:  # type: ignore[name-defined]  # noqa: F821, UP037
    return value


def method(function: Any, *, yields: bool = False) -> DescribedMethod:
    outline = outline_of(function.__name__, function, yields=yields, is_batch=False)
    return DescribedMethod(name=outline.method, yields=yields, schema=json.loads(outline.schema))


def document(*routes: Route, has_defaults: bool = True) -> dict[str, Any]:
    users = DescribedEndpoint(name="users", methods=(method(find), method(follow, yields=True), method(odd)))
    return openapi_document([users], routes, has_defaults=has_defaults, version="1")


def test_each_method_is_an_operation_with_what_it_takes_and_gives() -> None:
    paths = document()["paths"]
    assert set(paths) == {"/users/find", "/users/follow", "/users/odd"}
    operation = paths["/users/find"]["post"]
    schema = operation["requestBody"]["content"]["application/json"]["schema"]
    assert schema["properties"] == {"name": {"type": "string"}, "limit": {"type": "integer"}}
    assert schema["required"] == ["name"]
    result = operation["responses"]["200"]["content"]["application/json"]["schema"]
    assert result == {"type": "array", "items": {"$ref": "#/components/schemas/users.find.User"}}
    assert document()["components"]["schemas"]["users.find.User"]["properties"]["age"]["type"] == "integer"
    assert "text/event-stream" in paths["/users/follow"]["post"]["responses"]["200"]["content"]


def test_routes_have_parameters_of_path_and_query() -> None:
    route = Route(path="/people/{name}", endpoint="users", method="find", methods=("GET", "POST"))
    elsewhere = Route(path="/x", endpoint="secret", method="find")
    paths = document(route, elsewhere, has_defaults=False)["paths"]
    assert set(paths) == {"/people/{name}"}
    parameters = [(it["name"], it["in"], it["required"]) for it in paths["/people/{name}"]["get"]["parameters"]]
    assert parameters == [("name", "path", True), ("limit", "query", False)]
    body = paths["/people/{name}"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert (set(body["properties"]), body["required"]) == ({"limit"}, [])


def test_what_is_not_known_is_left_open() -> None:
    operation = document()["paths"]["/users/odd"]["post"]
    assert operation["requestBody"]["content"]["application/json"]["schema"]["properties"] == {"value": {}}
    assert operation["responses"]["200"]["content"]["application/json"]["schema"] == {}


def test_what_is_too_long_is_left_out() -> None:
    names = ", ".join(f"argument_{number}: int = 0" for number in range(1_000))
    scope: dict[str, Any] = {}
    exec(f"def wide({names}): ...", scope)  # noqa: S102 - a function with a thousand parameters
    assert outline_of("wide", scope["wide"], yields=False, is_batch=False).schema == ""
    outlines = [MethodOutline(f"m{number}", schema="x" * MAX_SCHEMA_CHARS) for number in range(9)]
    assert [it.method for it in fitting(outlines)] == ["m0", "m1", "m2"]


class Person(pydantic.BaseModel):
    name: str = pydantic.Field(alias="fullName", min_length=1)
    photo: bytes = b""
    friends: list[Person] = []


class Pet(pydantic.BaseModel):
    lives: int


async def befriend(
    who: Person,
    times: Annotated[int, pydantic.Field(gt=0)],
    others: Iterable[int],
    either: Person | Pet,
) -> Person:
    raise NotImplementedError


def test_models_constraints_and_iterables_are_described() -> None:
    schema = json.loads(outline_of("befriend", befriend, yields=False, is_batch=False).schema)
    arguments, person = schema["arguments"]["properties"], schema["$defs"]["Person"]
    assert arguments["times"] == {"type": "integer", "exclusiveMinimum": 0}
    assert arguments["others"] == {"type": "array", "items": {"type": "integer"}}
    assert arguments["who"] == schema["result"] == {"$ref": "#/$defs/Person"}
    assert arguments["either"] == {"anyOf": [{"$ref": "#/$defs/Person"}, {"$ref": "#/$defs/Pet"}]}
    assert person["properties"]["fullName"]["minLength"] == 1
    assert person["properties"]["photo"]["contentEncoding"] == "base64"
    assert person["properties"]["friends"]["items"] == {"$ref": "#/$defs/Person"}
