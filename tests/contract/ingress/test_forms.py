"""What a body is: its Content-Encoding, charset and form, and what is said where it is none of these."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from slotmesh.spec.routes import Route
from tests.contract.ingress.handlers import Kinds
from tests.support.http_client import http_connection
from tests.support.ingresses import ServedMesh, served_mesh

MOST = 100_000
ROUTES = (Route(path="/sum/{a}", endpoint="kinds", method="add", methods=("POST",)),)
OCTETS = "application/octet-stream"
JSON = "application/json"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served() -> AsyncIterator[ServedMesh]:
    async with served_mesh({"kinds": Kinds}, *ROUTES, max_body_size=MOST) as mesh:
        yield mesh


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.mark.parametrize("coding", ["gzip", "x-gzip", "GZIP", "deflate", "identity", ""])
@pytest.mark.parametrize(
    ("path", "kind", "body", "result"),
    [
        ("/kinds/echo", OCTETS, b"bytes", b"bytes"),
        ("/kinds/slow_add", JSON, b"[1]", b"2"),
        ("/sum/3", JSON, b'{"b": 4}', b"7"),
    ],
)
async def test_a_compressed_body_is_what_it_was(
    served: ServedMesh, coding: str, path: str, kind: str, body: bytes, result: bytes
) -> None:
    sent = {"gzip": gzip.compress(body), "deflate": zlib.compress(body)}.get(coding.lower().removeprefix("x-"), body)
    headers = {"content-type": kind, **({"content-encoding": coding} if coding else {})}
    answer = await served.ask("POST", path, sent, headers)
    assert (answer.status, answer.body) == (200, result)
    assert served.ingress.bodies.held == 0


@pytest.mark.parametrize("coding", ["br", "zstd", "gzip, gzip", "gzip, identity", "nonsense"])
async def test_another_coding_is_refused_and_the_known_ones_are_named(served: ServedMesh, coding: str) -> None:
    answer = await served.ask("POST", "/kinds/echo", b"x", {"content-type": OCTETS, "content-encoding": coding})
    assert (answer.status, answer.headers["accept-encoding"]) == (415, "gzip, deflate")
    assert answer.json["executed"] == "no"


@pytest.mark.parametrize("broken", ["cut", "longer", "none"])
async def test_a_body_that_is_not_what_its_coding_says_is_refused(served: ServedMesh, broken: str) -> None:
    packed = gzip.compress(b"bytes")
    body = {"cut": packed[:-3], "longer": packed + b"x", "none": b"bytes"}[broken]
    answer = await served.ask("POST", "/kinds/echo", body, {"content-type": OCTETS, "content-encoding": "gzip"})
    assert (answer.status, answer.json["executed"]) == (400, "no")
    assert "gzip" in answer.json["detail"]
    assert served.ingress.bodies.held == 0


async def test_what_a_small_body_becomes_is_bounded(served: ServedMesh) -> None:
    bomb = gzip.compress(bytes(100 * MOST))
    assert len(bomb) < MOST
    answer = await served.ask("POST", "/kinds/echo", bomb, {"content-type": OCTETS, "content-encoding": "gzip"})
    assert (answer.status, answer.json["reason"]) == (413, "PAYLOAD_TOO_LARGE")
    assert served.ingress.bodies.held == 0


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        (JSON, 200),
        (f"{JSON}; charset=utf-8", 200),
        (f'{JSON};Charset="UTF-8"', 200),
        (f"{JSON}; profile=x", 200),
        (f"{JSON}; charset=utf-16", 415),
        (f"{JSON}; charset=latin-1", 415),
        ("text/plain", 415),
    ],
)
async def test_json_is_utf_8(served: ServedMesh, kind: str, status: int) -> None:
    assert (await served.ask("POST", "/kinds/slow_add", b"[1]", {"content-type": kind})).status == status


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        ("content-type: application/json\r\ncontent-type: application/octet-stream", 415),
        ("content-type: application/json\r\nauthorization: Bearer a\r\nauthorization: Bearer b", 200),
        ("content-type: application/json\r\norigin: http://test\r\norigin: https://evil.example", 403),
        ("content-type: application/octet-stream\r\ncontent-encoding: gzip\r\ncontent-encoding: gzip", 415),
    ],
    ids=["types", "tokens that mean nothing here", "origins", "codings"],
)
async def test_headers_that_are_repeated_do_not_mean_the_first(served: ServedMesh, lines: str, status: int) -> None:
    async with http_connection(served.address) as connection:
        head = f"POST /kinds/slow_add HTTP/1.1\r\nhost: test\r\ncontent-length: 3\r\n{lines}\r\n\r\n"
        await connection.send(head.encode() + b"[1]")
        assert (await connection.answer()).status == status


@pytest.mark.parametrize(
    ("path", "body", "headers", "detail"),
    [
        ("/kinds/slow_add", b"nonsense", {}, "JSON is malformed: invalid character (byte 1)"),
        ("/kinds/slow_add", b"[1,", {}, "JSON is malformed: it ends at byte 3"),
        ("/kinds/slow_add", b"5", {}, "the top level must be an array"),
        ("/sum/3", b"{nonsense", {}, "JSON is malformed: object keys must be strings (byte 1)"),
        ("/sum/3", b"[4]", {}, "the body must be an object"),
        ("/kinds/slow_add", b"[1", {"accept": "application/msgpack"}, "truncated"),
    ],
)
async def test_what_is_no_json_is_called_so_and_where(
    served: ServedMesh, path: str, body: bytes, headers: dict[str, str], detail: str
) -> None:
    answer = await served.ask("POST", path, body, {"content-type": JSON, **headers})
    assert (answer.status, answer.json["executed"]) == (400, "no")
    assert detail in json.loads(answer.body)["detail"]


IMAGE = bytes(range(7))


@pytest.mark.parametrize(
    ("path", "accept", "kind", "result"),
    [
        ("/kinds/size", None, JSON, b"7"),
        ("/kinds/size", JSON, JSON, b"7"),
        ("/kinds/size", "application/msgpack", "application/msgpack", b"\x07"),
        ("/kinds/size", f"{OCTETS}, */*", JSON, b"7"),
        ("/kinds/measure?name=cat&scale=2", None, JSON, b'{"name":"cat","bytes":14,"end":[4,5,6]}'),
        ("/kinds/echo", None, OCTETS, IMAGE),
        ("/kinds/echo", f"{JSON}, text/plain, */*", OCTETS, IMAGE),
        ("/kinds/echo", JSON, JSON, b'"AAECAwQFBg=="'),
        ("/kinds/pick", None, OCTETS, IMAGE),
        ("/kinds/pick?as_text=true", None, JSON, b'"text"'),
        ("/kinds/labelled", None, JSON, b'"YWxsOgABAgMEBQY="'),
        ("/kinds/labelled?label=one", None, JSON, b'"b25lOgABAgMEBQY="'),
        ("/kinds/unannotated", None, OCTETS, IMAGE[::-1]),
        ("/kinds/rows", None, JSON, b"[[0,1],[2,3],[4,5],[6]]"),
        ("/kinds/rows?width=4", "application/x-ndjson", "application/x-ndjson", b"[0,1,2,3]\n[4,5,6]\n"),
    ],
)
async def test_a_body_of_bytes_is_an_argument_and_the_result_is_what_the_method_returns(
    served: ServedMesh, path: str, accept: str | None, kind: str, result: bytes
) -> None:
    headers = {"content-type": OCTETS, **({"accept": accept} if accept else {})}
    answer = await served.ask("POST", path, IMAGE, headers)
    assert (answer.status, answer.headers["content-type"], answer.body) == (200, kind, result)


@pytest.mark.parametrize(
    ("path", "accept", "status", "words"),
    [
        ("/kinds/unannotated", JSON, 415, "annotate one as bytes"),
        ("/kinds/size?image=AAAA", None, 415, "that path and query do not give"),
        ("/kinds/echo?width=1", OCTETS, 400, "accept application/json"),
        ("/kinds/size", "image/png", 406, OCTETS),
        ("/kinds/size", OCTETS, 406, "accept application/json"),
    ],
)
async def test_a_body_of_bytes_that_no_argument_takes_is_refused_before_the_call(
    served: ServedMesh, path: str, accept: str | None, status: int, words: str
) -> None:
    headers = {"content-type": OCTETS, **({"accept": accept} if accept else {})}
    answer = await served.ask("POST", path, IMAGE, headers)
    assert (answer.status, answer.json["executed"]) == (status, "no")
    assert words in answer.json["detail"]


async def test_an_upload_without_a_content_type_is_refused_with_the_header_to_send(served: ServedMesh) -> None:
    answer = await served.ask("POST", "/kinds/size", b"\x89PNG", {"content-type": ""})
    assert (answer.status, answer.json["executed"]) == (415, "no")
    assert OCTETS in answer.json["detail"]


async def test_the_document_names_octets_where_a_body_may_be_bytes(served: ServedMesh) -> None:
    paths = (await served.ask("GET", "/-/openapi.json")).json["paths"]
    content = {name: paths[f"/kinds/{name}"]["post"]["requestBody"]["content"] for name in ("measure", "add")}
    assert content["measure"][OCTETS] == {"schema": {"type": "string", "format": "binary"}}
    assert OCTETS not in content["add"]
