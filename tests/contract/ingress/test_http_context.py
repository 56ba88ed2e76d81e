"""What handlers are told of HTTP requests, and say of their answers: by executor, content type and door."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import msgspec
import pytest
import pytest_asyncio
from websockets.asyncio.client import connect

import slotmesh
from slotmesh.spec.routes import Route
from slotmesh.telemetry.setup_tracing import TracingSetup
from tests.support.http_client import HttpAnswer, http
from tests.support.ingresses import ServedMesh, served_mesh
from tests.support.spans import KeptSpans

pytestmark = pytest.mark.asyncio(loop_scope="module")
Head = list[Any]
CREATED: Head = [201, [["Location", "/things/7"], ["Set-Cookie", "a=1"], ["Set-Cookie", "b=2"]]]


def told() -> dict[str, Any]:
    it = slotmesh.context()
    if it.http is None:
        return {"http": None, "request_id": it.request_id}
    return {
        "method": it.http.method,
        "path": it.http.path,
        "query": it.http.query,
        "headers": dict(it.http.headers),
        "request_id": it.request_id,
        "address": it.http.address,
        "is_truncated": it.http.is_truncated,
    }


def respond(head: Head | None) -> None:
    http = slotmesh.context().http
    if head is not None and http is not None:
        http.respond(head[0], [(name, value) for name, value in head[1]])


class Answers:
    """Methods for each executor, which set what they are told to."""

    async def tell(self, **_more: Any) -> dict[str, Any]:
        return told()

    async def on_loop(self, head: Head | None = None) -> str:
        respond(head)
        return "body"

    async def suspended(self, head: Head | None = None) -> str:
        await asyncio.sleep(0)
        respond(head)
        return "body"

    def in_thread(self, head: Head | None = None) -> str:
        respond(head)
        return "body"

    @slotmesh.batch(max_batch_size=8, batch_wait_timeout_s=0.001)
    async def in_batch(self, heads: list[Head | None]) -> Sequence[str]:
        for context, head in zip(slotmesh.contexts(), heads, strict=True):
            if head is not None and context.http is not None:
                context.http.respond(head[0], [(name, value) for name, value in head[1]])
        return ["body"] * len(heads)

    async def values(self, head: Head | None = None) -> AsyncIterator[str]:
        respond(head)
        yield "body"

    async def late(self) -> AsyncIterator[str]:
        yield "body"
        try:
            respond([202, []])
        except RuntimeError as error:
            yield str(error)

    def values_in_threads(self, head: Head | None = None) -> Iterator[str]:
        respond(head)
        yield "body"

    async def raw(self, body: bytes) -> bytes:
        http = slotmesh.context().http
        assert http is not None
        http.respond(200, {"Content-Type": "image/png"})
        return body

    async def page(self, name: str) -> str:
        respond([200, [["Content-Type", "text/html"]]])
        return f'<a title="ü">{name}</a>'

    async def thumbnail(self, name: str, width: int = 8) -> bytes:
        respond([200, [["Content-Type", "image/png"], ["X-A", "b"]]])
        return b"\x89PNG" + name.encode() * width

    async def fails(self) -> None:
        respond([201, [["X-A", "b"]]])
        slotmesh.abort("NOT_FOUND", "after all")

    async def wrong(self, status: Any, headers: Any = ()) -> str:
        http = slotmesh.context().http
        assert http is not None
        try:
            http.respond(status, headers)
        except (ValueError, RuntimeError) as error:
            return str(error)
        return "taken"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served() -> AsyncIterator[ServedMesh]:
    routes = (
        Route(path="/tell/{name}", endpoint="answers", method="tell", methods=("GET", "PUT")),
        Route(path="/thumbnails/{name}", endpoint="answers", method="thumbnail", methods=("GET",)),
        Route(path="/pages/{name}", endpoint="answers", method="page", methods=("GET",)),
    )
    async with served_mesh({"answers": Answers}, *routes, handler_headers="user-agent, x-a, cookie") as mesh:
        yield mesh


async def test_a_handler_is_told_of_its_request(served: ServedMesh) -> None:
    headers = {"user-agent": "test", "x-a": "1", "X-B": "2", "x-request-id": "r-1", "authorization": "Bearer x"}
    answer = await served.ask("GET", "/tell/a%20b?x=1&y=%2F", b"", headers)
    assert answer.json == {
        "method": "GET",
        "path": "/tell/a%20b",
        "query": "x=1&y=%2F",
        "headers": {"user-agent": "test", "x-a": "1"},
        "request_id": "r-1",
        "address": "127.0.0.1",
        "is_truncated": False,
    }
    made = await served.ask("PUT", "/tell/x", {}, {})
    assert made.json["request_id"] == made.headers["x-request-id"] != "r-1"
    head = await served.ask("HEAD", "/tell/x")
    assert (head.status, head.body) == (200, b"")


async def test_what_does_not_fit_is_left_out_and_that_is_said(served: ServedMesh) -> None:
    answer = await served.ask("GET", "/tell/x", b"", {"x-a": "a" * 9_000})
    assert (answer.json["headers"], answer.json["path"], answer.json["is_truncated"]) == ({}, "/tell/x", True)
    answer = await served.ask("GET", "/tell/x?y=" + "a" * 9_000)
    assert (answer.json["query"], answer.json["path"], answer.json["is_truncated"]) == ("", "/tell/x", True)


async def test_many_large_requests_at_a_time_are_told_each_of_its_own(served: ServedMesh) -> None:
    asked = [served.ask("GET", f"/tell/{n}", b"", {"x-a": f"{n}-" + "a" * 7_000}) for n in range(200)]
    answers = [it.json for it in await asyncio.gather(*asked)]
    assert [(it["path"], it["headers"]["x-a"].split("-")[0]) for it in answers] == [
        (f"/tell/{n}", str(n)) for n in range(200)
    ]


async def test_a_large_body_has_its_request_beside_it(served: ServedMesh) -> None:
    body = b"x" * (3 * 2**20)
    answer = await served.ask("POST", "/answers/raw", body, {"content-type": "application/octet-stream"})
    assert (answer.status, answer.headers["content-type"], answer.body == body) == (200, "image/png", True)


@pytest.mark.parametrize("accept", ["*/*", "application/json", "application/msgpack", "image/webp,image/*,*/*;q=0.8"])
@pytest.mark.parametrize("is_route", [True, False])
async def test_a_type_of_the_handlers_own_has_its_bytes_and_texts_as_they_are(
    served: ServedMesh, accept: str, is_route: bool
) -> None:
    async def ask(method: str, path: str) -> HttpAnswer:
        if is_route:
            return await served.ask("GET", path, b"", {"accept": accept})
        return await served.ask("POST", f"/answers/{method}", ["a"], {"accept": accept})

    answer = await ask("thumbnail", "/thumbnails/a?width=8")
    assert (answer.headers["content-type"], answer.headers["x-a"]) == ("image/png", "b")
    assert answer.body == b"\x89PNGaaaaaaaa"
    answer = await ask("page", "/pages/a")
    assert (answer.headers["content-type"], answer.body.decode()) == ("text/html", '<a title="ü">a</a>')


async def test_calls_that_did_not_come_by_http_have_none(served: ServedMesh) -> None:
    endpoint = served.mesh.endpoint("answers")
    assert await endpoint.method("tell")() == {"http": None, "request_id": ""}
    named = endpoint.options(metadata={"x-request-id": "r-2"})
    assert (await named.method("tell")())["request_id"] == "r-2"
    assert await endpoint.method("on_loop")(CREATED) == "body"


EXECUTORS = ["on_loop", "suspended", "in_thread", "in_batch", "values", "values_in_threads"]
FORMS = ["application/json", "application/msgpack"]


@pytest.mark.parametrize("method", EXECUTORS)
@pytest.mark.parametrize("form", FORMS)
async def test_status_and_headers_are_those_that_a_handler_sets(served: ServedMesh, method: str, form: str) -> None:
    encode: Any = json.dumps if form == "application/json" else msgspec.msgpack.encode
    decode: Any = json.loads if form == "application/json" else msgspec.msgpack.decode

    async def ask(head: Head | None) -> HttpAnswer:
        body = encode([head])
        data = body.encode() if isinstance(body, str) else body
        return await served.ask("POST", f"/answers/{method}", data, {"content-type": form})

    plain = await ask(None)
    answers = await asyncio.gather(*(ask(CREATED if n % 2 else None) for n in range(20)))
    for n, answer in enumerate(answers):
        assert answer.status == (201 if n % 2 else 200)
        assert answer.headers.get("location") == ("/things/7" if n % 2 else None)
        assert decode(answer.body) == decode(plain.body)
        assert answer.headers["content-type"] == form
        assert len(answer.headers["x-request-id"]) == 32


@pytest.mark.parametrize("method", EXECUTORS)
@pytest.mark.parametrize("accept", ["text/event-stream", "application/x-ndjson"])
async def test_they_go_before_the_first_value(served: ServedMesh, method: str, accept: str) -> None:
    head: Head = [203, [["X-A", "b"], ["Content-Type", "text/plain"]]]
    answer = await served.ask("POST", f"/answers/{method}", [head], {"accept": accept})
    assert (answer.status, answer.headers["x-a"], answer.headers["content-type"]) == (203, "b", accept)
    assert b'"body"' in answer.body


async def test_behind_the_first_value_it_is_too_late(served: ServedMesh) -> None:
    answer = await served.ask("POST", "/answers/late", [], {"accept": "application/x-ndjson"})
    assert (answer.status, b"the response has begun" in answer.body) == (200, True)


@pytest.mark.parametrize("status", [204, 304])
async def test_a_status_without_a_body_has_none(served: ServedMesh, status: int) -> None:
    answer = await served.post("/answers/on_loop", [[status, [["ETag", '"7"']]]])
    assert (answer.status, answer.headers["etag"], answer.body) == (status, '"7"', b"")
    assert "content-type" not in answer.headers
    assert "content-length" not in answer.headers


async def test_a_failure_is_a_problem_document_all_the_same(served: ServedMesh) -> None:
    answer = await served.post("/answers/fails", [])
    assert (answer.status, answer.json["reason"], answer.headers.get("x-a")) == (404, "HANDLER_ERROR", None)


@pytest.mark.parametrize(
    ("status", "headers", "problem"),
    [
        (199, {}, "status must be 200 to 599"),
        (600, {}, "status must be 200 to 599"),
        ("200", {}, "status must be 200 to 599"),
        (200, {"X-A": "b\r\nX-C: d"}, "without control characters"),
        (200, {"X-A": "b\nd"}, "without control characters"),
        (200, {"X-A": "\u20ac"}, "Latin-1"),
        (200, {"X-A\r\nX-C": "b"}, "not a header's name"),
        (200, {"": "b"}, "not a header's name"),
        (200, {"Content-Length": "1"}, "set by the HTTP front"),
        (200, {"transfer-encoding": "chunked"}, "set by the HTTP front"),
        (200, {"Connection": "close"}, "set by the HTTP front"),
        (200, {"X-Request-ID": "a"}, "set by the HTTP front"),
        (200, {"Access-Control-Allow-Origin": "*"}, "set by the HTTP front"),
        (200, {f"X-{n}": "" for n in range(65)}, "at most 64"),
        (200, {"X-A": "a" * 9_000}, "at most 64"),
    ],
)
async def test_what_cannot_be_sent_raises_where_it_is_set(
    served: ServedMesh, status: Any, headers: dict[str, str], problem: str
) -> None:
    answer = await served.post("/answers/wrong", [status, headers])
    assert answer.status == 200
    assert problem in answer.json


async def test_a_socket_is_told_of_its_handshake_and_has_no_answer_to_set(served: ServedMesh) -> None:
    address = f"ws://{served.address}/answers"
    async with connect(f"{address}/tell", additional_headers={"x-request-id": "r-3", "x-a": "1"}) as socket:
        await socket.send("[]")
        value = json.loads(await socket.recv())["value"]
        assert (value["method"], value["path"], value["request_id"]) == ("GET", "/answers/tell", "r-3")
        assert value["headers"]["x-a"] == "1"
    async with connect(f"{address}/wrong") as socket:
        await socket.send("[200]")
        assert "no HTTP response of its own" in json.loads(await socket.recv())["value"]


async def test_a_router_that_makes_spans_hands_the_request_on() -> None:
    kept = KeptSpans()
    with pytest.MonkeyPatch.context() as patch:
        setup = TracingSetup(kept.tracing(1.0, 1_000.0))
        patch.setattr("router_service.app.setup_tracing", lambda *_: setup)
        async with served_mesh({"answers": Answers}) as served:
            answer = await served.post("/answers/tell", {}, x_request_id="r-6")
            assert (answer.json["path"], answer.json["request_id"]) == ("/answers/tell", "r-6")
            parent = f"00-{'a' * 32}-{'1' * 16}-01"
            answer = await served.post("/answers/tell", {}, x_request_id="r-7", traceparent=parent)
            assert (answer.json["path"], answer.json["request_id"]) == ("/answers/tell", "r-7")
            answer = await served.post("/answers/in_thread", [CREATED])
            assert answer.status == 201
    assert len(kept.ended) >= 3


async def test_a_result_that_looks_like_a_head_is_a_result(served: ServedMesh) -> None:
    """What a caller sends and gets back sets nothing: the mark is not for it to know."""
    body = b"x\x08\xc9\x01" + (3).to_bytes(4, "little") + b"m" * 16
    answer = await served.ask("POST", "/answers/raw", body, {"content-type": "application/octet-stream"})
    assert (answer.status, answer.body) == (200, body)


async def test_the_log_has_the_id_of_the_request(served: ServedMesh, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    answer = await http(served.address, "POST", "/answers/wrong", [], {"x-request-id": "r-4"})
    assert answer.status == 400
    answer = await http(served.address, "POST", "/answers/in_thread", [[1]], {"x-request-id": "r-5"})
    assert answer.status == 500
    [told] = [it for it in caplog.messages if "request_id=r-5" in it]
    assert answer.json["log_ref"] in told
