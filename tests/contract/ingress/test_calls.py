"""Requests become calls of every kind of handler, and results answers."""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec
import pytest
import pytest_asyncio

from slotmesh.spec.routes import Route
from tests.contract.ingress.handlers import Kinds, greet
from tests.support.ingresses import ServedMesh, served_mesh

ROUTES = (
    Route(path="/sum", endpoint="kinds", method="add", methods=("GET", "POST")),
    Route(path="/users/{name}", endpoint="greet", method="__call__", methods=("GET",)),
    Route(path="/typed/{word}", endpoint="kinds", method="typed", methods=("GET", "POST")),
    Route(path="/users/known", endpoint="kinds", method="add"),
)
MSGPACK = {"content-type": "application/msgpack"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served() -> AsyncIterator[ServedMesh]:
    async with served_mesh({"kinds": Kinds, "greet": greet}, *ROUTES, cors_origins="https://pages.example") as mesh:
        yield mesh


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.mark.parametrize("method", ["add", "slow_add"])
@pytest.mark.parametrize("body", [[2, 3], {"a": 2, "b": 3}])
async def test_arguments_are_a_list_or_an_object(served: ServedMesh, method: str, body: object) -> None:
    answer = await served.post(f"/kinds/{method}", body)
    assert (answer.status, answer.headers["content-type"], answer.json) == (200, "application/json", 5)


async def test_batches_functions_and_empty_bodies_are_called(served: ServedMesh) -> None:
    assert (await served.post("/kinds/double", [21])).json == 42
    assert (await served.post("/greet", ["Ada"])).json == "Hello, Ada!"
    assert (await served.post("/kinds/anything", b"")).json == {}
    assert (await served.post("/kinds/anything", {"größe": "☃", "deep": [1, {"x": None}]})).json == {
        "größe": "☃",
        "deep": [1, {"x": None}],
    }


async def test_bytes_and_msgpack_travel_as_they_are(served: ServedMesh) -> None:
    octets = await served.ask("POST", "/kinds/echo", b"\x00\xff", {"content-type": "application/octet-stream"})
    assert (octets.headers["content-type"], octets.body) == ("application/octet-stream", b"\x00\xff")
    packed = await served.ask("POST", "/kinds/echo", msgspec.msgpack.encode([b"\x01"]), MSGPACK)
    assert (packed.headers["content-type"], msgspec.msgpack.decode(packed.body)) == ("application/msgpack", b"\x01")


async def test_accept_chooses_between_json_and_msgpack(served: ServedMesh) -> None:
    packed = await served.post("/kinds/add", [2, 3], accept="application/msgpack")
    assert (packed.headers["content-type"], packed.body) == ("application/msgpack", b"\x05")
    plain = await served.ask(
        "POST",
        "/kinds/add",
        msgspec.msgpack.encode({"a": 1}),
        {**MSGPACK, "accept": "text/html;q=0.9, application/json"},
    )
    assert (plain.headers["content-type"], plain.json) == ("application/json", 2)
    odd = await served.post("/kinds/add", [1], accept="image/png")
    assert (odd.status, "text/event-stream" in odd.json["detail"]) == (406, True)
    form = "application/x-www-form-urlencoded"  # what curl -d sends
    odd = await served.post("/kinds/add", [1], content_type=form)
    assert odd.status == 415
    assert odd.json["detail"].startswith(f"Content-Type is {form}, and must be one of application/json (curl --json)")


async def test_routes_have_methods_parameters_and_queries(served: ServedMesh) -> None:
    assert (await served.ask("GET", "/users/Ada%20L%2FB")).json == "Hello, Ada L/B!"
    assert (await served.ask("GET", "/sum?a=2&b=3")).json == 5
    assert (await served.post("/users/known", [1])).json == 2
    wrong = await served.post("/users/Ada", [])
    assert (wrong.status, wrong.headers["allow"], wrong.json["reason"]) == (405, "GET, HEAD", "BAD_REQUEST")
    head = await served.ask("HEAD", "/sum?a=2&b=3")
    assert (head.status, head.body, head.headers["content-length"]) == (200, b"", "1")
    options = await served.ask("OPTIONS", "/sum")
    assert options.status == 204


async def test_texts_of_path_and_query_become_what_annotations_say(served: ServedMesh) -> None:
    answer = await served.ask("GET", "/typed/7?numbers=1&ratio=2&flag=true")
    assert answer.json == {"word": "7", "numbers": [1], "ratio": 2.0, "flag": True}
    answer = await served.ask("GET", "/typed/x?numbers=1&numbers=2")
    assert answer.json == {"word": "x", "numbers": [1, 2], "ratio": 0.0, "flag": False}
    mixed = await served.post("/typed/y?ratio=0.5", {"numbers": [3]})
    assert mixed.json == {"word": "y", "numbers": [3], "ratio": 0.5, "flag": False}
    twice = await served.post("/typed/y", {"numbers": [3], "word": "z"})
    assert (twice.status, twice.json["detail"]) == (400, "word: is given by the body, and by path or query")
    beyond = await served.ask("GET", "/typed/x?numbers=1&ratio=1e400")
    assert beyond.json["detail"].startswith("ratio: expected float, got str")
    bad = await served.ask("GET", "/typed/x?numbers=many")
    assert (bad.status, bad.json["reason"]) == (400, "BAD_ARGUMENTS")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/", 404), ("POST", "/a/b/c", 404), ("POST", "/-/nothing", 404), ("GET", "/kinds/add", 405)],
)
async def test_what_is_not_there_is_told_without_what_is(
    served: ServedMesh, method: str, path: str, status: int
) -> None:
    answer = await served.ask(method, path)
    assert answer.status == status
    assert answer.headers["content-type"] == "application/problem+json"
    assert b"kinds" not in answer.body
    assert b"users" not in answer.body


async def test_what_is_said_of_the_call_reaches_it(served: ServedMesh) -> None:
    headers = {
        "X-Slotmesh-Meta-Tenant": "a",
        "X-Slotmesh-Ordering-Key": "k",
        "X-Slotmesh-Timeout": "5s",
        "X-Slotmesh-Relative-Slo-Ms": "50.5",
        "Idempotency-Key": "1",
    }
    answer = await served.ask("POST", "/kinds/context", b"", headers)
    assert answer.json == {"metadata": {"tenant": "a"}, "ordering_key": "k"}
    assert (await served.ask("POST", "/kinds/context?absolute_slo_ms=1700000000000", b"")).status == 200


@pytest.mark.parametrize(
    ("headers", "query", "said"),
    [
        ({"X-Slotmesh-Relative-Slo-Ms": "5", "X-Slotmesh-Absolute-Slo-Ms": "5"}, "", "both given"),
        ({"X-Slotmesh-Absolute-Slo-Ms": "5"}, "?relative_slo_ms=5", "both given"),
        ({"X-Slotmesh-Relative-Slo-Ms": "-5"}, "", "must be milliseconds"),
        ({"X-Slotmesh-Relative-Slo-Ms": "1"}, "?relative_slo_ms=2", "given twice"),
        ({"X-Slotmesh-Timeout": "5"}, "", "write a duration with its unit"),
        ({"X-Slotmesh-Meta-Authorization": "x"}, "", "reserved"),
        ({"X-Slotmesh-Meta-Grpc-Status": "x"}, "", "reserved"),
        ({"X-Slotmesh-Meta-Slotmesh-X": "x"}, "", "reserved"),
        ({"X-Slotmesh-Shard-Key": "x" * 1_025}, "", "1024 bytes"),
        ({"X-Slotmesh-Tenant": "x" * 257}, "", "X-Slotmesh-Tenant: at most 256 bytes"),
        ({"X-Slotmesh-Tenant": "a\u2028b"}, "", "X-Slotmesh-Tenant: printable characters only"),
        ({"X-Slotmesh-Colour": "x"}, "", "no such header"),
    ],
)
async def test_what_no_call_may_say_is_refused_with_its_name(
    served: ServedMesh, headers: dict[str, str], query: str, said: str
) -> None:
    answer = await served.ask("POST", f"/kinds/context{query}", b"", headers)
    assert answer.status == 400
    assert said in answer.json["detail"]


async def test_pages_of_other_origins_call_only_where_they_may(served: ServedMesh) -> None:
    allowed = await served.post("/kinds/add", [1], origin="https://pages.example")
    assert allowed.headers["access-control-allow-origin"] == "https://pages.example"
    assert (await served.post("/kinds/add", [1], origin="http://test")).status == 200  # the ingress's own pages
    refused = await served.post("/kinds/add", [1], origin="https://evil.example")
    assert (refused.status, "access-control-allow-origin" in refused.headers) == (403, False)
    asked = {"origin": "https://pages.example", "access-control-request-method": "POST"}
    preflight = await served.ask("OPTIONS", "/kinds/add", b"", asked)
    assert (preflight.status, "POST" in preflight.headers["access-control-allow-methods"]) == (204, True)


async def test_routes_change_while_it_runs(served: ServedMesh) -> None:
    assert (await served.post("/later/on", [2])).status == 404
    await served.set_routes(Route(path="/later/on", endpoint="kinds", method="double"))
    assert (await served.post("/later/on", [2])).json == 4
    shown = (await served.ask("GET", "/-/routes")).json
    assert {"path": "/later/on", "endpoint": "kinds", "method": "double", "methods": ["POST"]} in shown["routes"]


async def test_health_and_metrics_are_counted_by_route(served: ServedMesh) -> None:
    assert (await served.ask("GET", "/-/healthz")).body == b"ok\n"
    assert (await served.ask("GET", "/-/readyz")).status == 200
    before = served.ingress.counters.requests["/sum", 200]
    await served.ask("GET", "/sum?a=2&b=3")
    assert served.ingress.counters.requests["/sum", 200] == before + 1
    assert served.ingress.counters.in_flight == 0
    assert served.ingress.bodies.held == 0
