"""Routes in documents and on the wire, and what makes them valid."""

from __future__ import annotations

import pytest
import yaml

from slotmesh.convert.specification import mesh_from_wire, mesh_to_wire
from slotmesh.spec.document import parse_mesh
from slotmesh.spec.model import InvalidSpec
from slotmesh.spec.routes import Route, route_path, route_subject, segments_of, shape_of
from slotmesh.spec.writing import mesh_document

DOCUMENT = """
routes:
  /classify: {endpoint: digits, method: classify}
  "/users/{name}": {endpoint: users, method: show, methods: [GET, DELETE]}
  /: {endpoint: front, method: page, methods: [GET]}
"""

NO_METHOD = "must be the name of a method of the handler, 1 to 128 characters; __call__ where it is a function"


def mistakes(document: str) -> dict[str, str]:
    with pytest.raises(InvalidSpec) as refused:
        parse_mesh(document)
    return {it.path: it.message for it in refused.value.violations}


def test_a_document_has_routes_with_their_methods() -> None:
    assert parse_mesh(DOCUMENT).routes == (
        Route(path="/classify", endpoint="digits", method="classify", methods=("POST",)),
        Route(path="/users/{name}", endpoint="users", method="show", methods=("DELETE", "GET")),
        Route(path="/", endpoint="front", method="page", methods=("GET",)),
    )


def test_what_is_written_or_sent_is_read_as_the_same_routes() -> None:
    mesh = parse_mesh(DOCUMENT)
    assert parse_mesh(yaml.safe_dump(mesh_document(mesh), sort_keys=False)) == mesh
    assert mesh_from_wire(mesh_to_wire(mesh)) == (mesh, [])
    assert "routes" not in mesh_document(parse_mesh("{}"))


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("classify", "begins with /"),
        ("/" + "a" * 256, "256 characters at most"),
        ("/" + "/".join("a" * 17), "16 segments at most, this one has 17"),
        ("/-/healthz", "for what the ingress itself answers"),
        ("/-", "for what the ingress itself answers"),
        ("/a/", "no / at the end"),
        ("//a", "no / at the end"),
        ("/a/../b", "a segment is of"),
        ("/a b", "a segment is of"),
        ("/a%20b", "a segment is of"),
        ("/ä", "a segment is of"),
        ("/x{name}", "a segment is of"),
        ("/{1}", "a segment is of"),
        ("/{a}/{a}", "named twice"),
    ],
)
def test_a_path_that_is_none_is_a_mistake(path: str, said: str) -> None:
    [message] = mistakes(yaml.safe_dump({"routes": {path: {"endpoint": "e", "method": "m"}}})).values()
    assert said in message


def test_other_mistakes_are_told_with_their_paths() -> None:
    assert mistakes("""
        routes:
          /a: {}
          /b: {endpoint: "not a name", method: "1", methods: []}
          /c: {endpoint: e, method: m, methods: [GET, get]}
          /d: {endpoint: e, method: m, methods: [PUT, PUT], colour: red}
          /e/{x}: {endpoint: e, method: m}
          /e/{y}: {endpoint: e, method: m}
    """) == {
        "routes./a.endpoint": "a name has 1 to 63 of `a-z A-Z 0-9 _ . -` and starts with a letter or digit",
        "routes./a.method": NO_METHOD,
        "routes./b.endpoint": "a name has 1 to 63 of `a-z A-Z 0-9 _ . -` and starts with a letter or digit",
        "routes./b.method": NO_METHOD,
        "routes./b.methods": "needs at least one of GET, POST, PUT, PATCH, DELETE",
        "routes./c.methods": "must be of GET, POST, PUT, PATCH, DELETE, is 'get'",
        "routes./d.colour": "there is no such setting",
        "routes./d.methods": "names one twice",
        "routes./e/{y}": "matches the same paths as /e/{x}: leave one of them out",
    }


def test_a_subject_names_a_path_and_a_path_has_a_shape() -> None:
    assert [route_path(route_subject(path)) for path in ("/", "/a", "/a/{b}")] == ["/", "/a", "/a/{b}"]
    assert [shape_of(path) for path in ("/", "/a", "/a/{b}/c")] == ["/", "/a", "/a/{}/c"]
    assert (segments_of("/"), segments_of("/a/{b}")) == ((), ("a", "{b}"))
