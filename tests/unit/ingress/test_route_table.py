"""Which call a request is."""

from __future__ import annotations

import pytest

from ingress_service.core.routes import DEFAULT_LABEL, Matched, RouteTable, WrongMethod
from slotmesh.spec.routes import Route

ROUTES = (
    Route(path="/", endpoint="front", method="page", methods=("GET",)),
    Route(path="/users/{name}", endpoint="users", method="show", methods=("GET",)),
    Route(path="/users/me", endpoint="users", method="me"),
    Route(path="/users/{name}/posts/{number}", endpoint="posts", method="show", methods=("GET", "PUT")),
    Route(path="/digits/classify", endpoint="other", method="run"),
    Route(path="/notes", endpoint="notes", method="put", methods=("PATCH", "PUT")),
)
METHODS = ("DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT")
TABLE = RouteTable(ROUTES)


@pytest.mark.parametrize(
    ("path", "method", "endpoint", "called", "arguments"),
    [
        (b"/", "GET", "front", "page", {}),
        (b"/", "HEAD", "front", "page", {}),
        (b"/users/Ada", "GET", "users", "show", {"name": "Ada"}),
        (b"/users/A%2FB%20%C3%BC", "GET", "users", "show", {"name": "A/B ü"}),
        (b"/users/me", "POST", "users", "me", {}),
        (b"/users/me/posts/7", "PUT", "posts", "show", {"name": "me", "number": "7"}),
        (b"/digits/classify", "POST", "other", "run", {}),
        (b"/digits/other", "POST", "digits", "other", {}),
        (b"/digits", "POST", "digits", "__call__", {}),
    ],
)
def test_a_literal_goes_before_a_parameter_and_routes_before_defaults(
    path: bytes, method: str, endpoint: str, called: str, arguments: dict[str, str]
) -> None:
    for _ in range(2):  # the second time it is known
        found = TABLE.match(path, method)
        assert isinstance(found, Matched)
        assert (found.endpoint, found.method, dict(found.arguments)) == (endpoint, called, arguments)


@pytest.mark.parametrize(
    "path", [b"/a/b/c", b"/-/x", b"/users/Ada/", b"/users//posts/1", b"/%ff", b"", b"/a%2Fb", b"*", b"/a/" + b"m" * 257]
)
def test_what_is_no_path_of_it_is_nothing(path: bytes) -> None:
    assert TABLE.match(path, "POST") is None


def test_the_longest_method() -> None:
    found = TABLE.match(b"/a/" + b"m" * 256, "POST")
    assert isinstance(found, Matched)
    assert found.method == "m" * 256


def test_another_method_says_which_there_are() -> None:
    assert TABLE.match(b"/users/me", "GET") == WrongMethod("/users/me", ("POST",))
    assert TABLE.match(b"/users/Ada/posts/7", "DELETE") == WrongMethod("/users/{name}/posts/{number}", ("GET", "PUT"))
    assert TABLE.match(b"/digits/other", "GET") == WrongMethod(DEFAULT_LABEL, ("POST",), "digits", "other")
    assert isinstance(TABLE.match(b"/users/me", "GET", is_any_method=True), Matched)


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        (b"/", {"GET", "HEAD"}),
        (b"/users/me", {"POST"}),
        (b"/notes", {"PUT", "PATCH"}),
        (b"/users/Ada/posts/7", {"GET", "HEAD", "PUT"}),
        (b"/digits/other", {"POST"}),
    ],
)
@pytest.mark.parametrize("before", METHODS)
def test_what_a_path_was_called_with_before_allows_no_other_method(before: str, path: bytes, allowed: set[str]) -> None:
    table = RouteTable(ROUTES)
    for method in (before, *METHODS, before):
        assert isinstance(table.match(path, method), Matched) is (method in allowed), (before, method)


def test_default_routes_may_be_taken_away() -> None:
    table = RouteTable(ROUTES, has_defaults=False)
    assert table.match(b"/digits/other", "POST") is None
    assert isinstance(table.match(b"/digits/classify", "POST"), Matched)


def test_labels_are_of_a_closed_set() -> None:
    found = [TABLE.match(b"/%c/m" % letter, "POST") for letter in b"abcdefghij"]
    assert {it.label for it in found if isinstance(it, Matched)} == {DEFAULT_LABEL}
