"""X-Request-ID: taken or made, in each answer, the log, and the documents of failures; and paths that are none."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from slotmesh.spec.routes import Route
from tests.contract.ingress.handlers import Kinds
from tests.support.http_client import http_connection
from tests.support.ingresses import ServedMesh, served_mesh

pytestmark = pytest.mark.asyncio(loop_scope="module")
ID = "x-request-id"
_KEY = "dGhlIHNhbXBsZSBub25jZQ=="


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served() -> AsyncIterator[ServedMesh]:
    routes = (Route(path="/add/{a}", endpoint="kinds", method="add", methods=("GET",)),)
    async with served_mesh({"kinds": Kinds}, *routes, cors_origins="https://a.example") as mesh:
        yield mesh


@pytest.mark.parametrize(
    ("method", "path", "status", "headers"),
    [
        ("POST", "/kinds/add", 200, {}),
        ("GET", "/add/1", 200, {}),
        ("HEAD", "/add/1", 200, {}),
        ("POST", "/kinds/count", 200, {"accept": "text/event-stream"}),
        ("POST", "/kinds/fail", 500, {}),
        ("POST", "/kinds/add", 415, {"content-type": "text/plain"}),
        ("POST", "/nothing/there", 404, {}),
        ("POST", "/add/1", 405, {}),
        ("OPTIONS", "/kinds/add", 204, {}),
        ("POST", "/kinds/add", 403, {"origin": "https://b.example"}),
        ("POST", "/kinds/add", 200, {"origin": "https://a.example"}),
        ("GET", "/v2/health/live", 200, {}),
        ("POST", "/v2/models/none/infer", 400, {}),
        ("GET", "/v2/models/none", 404, {}),
        ("POST", "/v2/nothing", 404, {}),
        ("GET", "/-/healthz", 200, {}),
        ("GET", "/-/nothing", 404, {}),
        ("POST", "/-/healthz", 405, {}),
    ],
)
async def test_each_answer_has_the_id_that_was_given_or_a_new_one(
    served: ServedMesh, method: str, path: str, status: int, headers: dict[str, str]
) -> None:
    body = b"[1]" if method == "POST" and path.endswith(("add", "count")) else b""
    given = await served.ask(method, path, body, {**headers, ID: "order-7"})
    assert (given.status, given.headers[ID]) == (status, "order-7")
    made = [(await served.ask(method, path, body, headers)).headers[ID] for _ in range(2)]
    assert made[0] != made[1]
    assert {len(each) for each in made} == {32}
    if status >= 400 and method != "HEAD":
        assert given.json["request_id"] == "order-7"


@pytest.mark.parametrize("said", ["a b", "x" * 129, "", "<script>", "é", 'a"b'])
async def test_what_is_no_id_is_as_if_nothing_was_said(served: ServedMesh, said: str) -> None:
    answer = await served.post("/kinds/add", [1], x_request_id=said)
    assert answer.status == 200
    assert len(answer.headers[ID]) == 32


async def test_the_log_has_the_id_of_what_fails(served: ServedMesh, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    answer = await served.post("/kinds/fail", [], x_request_id="order-8")
    lines = [it for it in caplog.messages if "request_id=order-8" in it and answer.json["log_ref"] in it]
    assert any("a request failed" in it for it in lines)


async def test_a_socket_has_the_id_of_its_handshake(served: ServedMesh) -> None:
    async with connect(f"ws://{served.address}/kinds/fail", additional_headers={ID: "order-9"}) as socket:
        assert socket.response is not None
        assert socket.response.headers[ID] == "order-9"
        await socket.send("[]")
        assert json.loads(await socket.recv())["problem"]["request_id"] == "order-9"


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "HEAD"])
@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/kinds/add", 405),
        ("/kinds", 404),
        ("/kinds/no_such_method", 404),
        ("/nothing/there", 404),
        ("/nothing", 404),
        ("/favicon.ico", 404),
        ("/a/b/c", 404),
        ("/", 404),
    ],
)
async def test_another_method_than_there_is_is_405_only_where_there_is_one(
    served: ServedMesh, method: str, path: str, status: int
) -> None:
    answer = await served.ask(method, path)
    assert answer.status == status
    assert answer.headers.get("allow") == ("POST" if status == 405 else None)


async def test_metrics_are_on_the_port_of_http(served: ServedMesh) -> None:
    await served.post("/kinds/add", [1])
    plain = await served.ask("GET", "/-/metrics")
    assert plain.headers["content-type"].startswith("text/plain")
    assert b'slotmesh_ingress_requests_total{http_response_status_code="200",http_route="_default"}' in plain.body
    fancy = await served.ask("GET", "/-/metrics", b"", {"accept": "application/openmetrics-text"})
    assert fancy.body.endswith(b"# EOF\n")
    assert (await served.ask("GET", "/-/metrics", b"", {"origin": "https://b.example"})).status == 403


@pytest.mark.parametrize(
    ("lines", "version"),
    [
        ({"sec-websocket-version": "12", "sec-websocket-key": _KEY}, "13"),
        ({"sec-websocket-key": _KEY}, "13"),
        ({"sec-websocket-version": "13"}, None),
        ({"sec-websocket-version": "13", "sec-websocket-key": "short"}, None),
    ],
    ids=["another version", "no version", "no key", "no such key"],
)
async def test_a_malformed_handshake_has_the_id_and_says_which_version_there_is(
    served: ServedMesh, lines: dict[str, str], version: str | None
) -> None:
    headers = {"connection": "Upgrade", "upgrade": "websocket", **lines, ID: "order-10"}
    answer = await served.ask("GET", "/kinds/add", b"", headers)
    assert (answer.status, answer.headers[ID], answer.json["request_id"]) == (400, "order-10", "order-10")
    assert answer.headers.get("sec-websocket-version") == version
    assert answer.json["log_ref"]


@pytest.mark.parametrize(
    ("sent", "status"),
    [(b"nonsense\r\n\r\n", 400), (b"GET / HTTP/1.1\r\nx: " + b"a" * 40_000, 431), (b"GET / HTTP/1.1\r\n\r\n", 400)],
)
async def test_what_cannot_be_read_has_a_new_id(served: ServedMesh, sent: bytes, status: int) -> None:
    async with http_connection(served.address) as connection:
        await connection.send(sent)
        answer = await connection.answer()
    assert answer.status == status
    assert answer.json["request_id"] == answer.headers[ID]
    assert len(answer.headers[ID]) == 32


async def test_a_socket_that_is_refused_has_the_id_once(served: ServedMesh) -> None:
    with pytest.raises(InvalidStatus) as caught:
        async with connect(f"ws://{served.address}/nothing/at/all", additional_headers={ID: "order-10"}):
            pass
    assert caught.value.response.headers.get_all(ID) == ["order-10"]
