"""Which requests are of the protocol, what comes before it, who may send them, and how they are counted."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest
import pytest_asyncio

from slotmesh.spec.routes import Route
from tests.contract.inference.handlers import Model, double
from tests.contract.inference_http.bodies import arrays, body_of, infer
from tests.support.http_client import http_connection
from tests.support.ingresses import ServedMesh, served_mesh

pytestmark = pytest.mark.asyncio(loop_scope="module")

ROUTES = (
    Route(path="/v2/models/mine/infer", endpoint="echo", method="__call__", methods=("POST",)),
    Route(path="/v2/models/{name}/config", endpoint="echo", method="__call__", methods=("POST",)),
)


class Second:
    """An endpoint that is named as the protocol is."""

    async def infer(self, x: int) -> int:
        return x + 1


async def echo(name: str = "", x: int = 0) -> list[Any]:
    return ["echo", name, x]


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def routed() -> AsyncIterator[ServedMesh]:
    backends = {"model": Model, "echo": echo, "v2": Second, "double": double}
    async with served_mesh(backends, *ROUTES, cors_origins="https://pages.example") as mesh:
        yield mesh


async def test_routes_of_the_mesh_go_first(routed: ServedMesh) -> None:
    assert (await routed.post("/v2/models/mine/infer", {"x": 5})).json == ["echo", "", 5]
    assert (await routed.post("/v2/models/model/config", {})).json == ["echo", "model", 0]
    wrong = await routed.ask("GET", "/v2/models/model/config")
    assert (wrong.status, wrong.headers["allow"], wrong.headers["content-type"]) == (
        405,
        "POST",
        "application/problem+json",
    )
    assert arrays(await infer(routed, "model", {"x": [1]}))["output"].tolist() == [1]


async def test_default_routes_come_after_it(routed: ServedMesh) -> None:
    assert (await routed.post("/v2/infer", [1])).json == 2
    assert (await routed.ask("GET", "/v2")).json["name"] == "slotmesh"
    nothing = await routed.post("/v2", [])
    assert (nothing.status, nothing.json["reason"]) == (404, "METHOD_NOT_FOUND")
    answer = await infer(routed, "v2", {"x": [1]})
    assert arrays(answer)["output"].tolist() == [2]


@pytest.mark.parametrize(
    ("method", "path", "status", "allow"),
    [
        ("POST", "/v2/models/model", 405, "GET, HEAD"),
        ("GET", "/v2/models/model/infer", 405, "POST"),
        ("DELETE", "/v2/repository/index", 405, "POST"),
        ("GET", "/v2/models/model/nothing", 404, ""),
        ("GET", "/v2/models/", 404, ""),
        ("GET", "/v2/models", 404, ""),
        ("GET", "/v2/models//ready", 404, ""),
        ("GET", "/v2/models/model/versions//ready", 404, ""),
        ("GET", "/v2/models/%FF/ready", 404, ""),
        ("POST", "/v2/repository/models/model/load", 501, ""),
        ("POST", "/v2/repository/models/model/unload", 501, ""),
        ("GET", "/v2/systemsharedmemory/status", 501, ""),
        ("POST", "/v2/cudasharedmemory/region/r/register", 501, ""),
        ("GET", "/v2/trace/setting", 501, ""),
        ("POST", "/v2/models/model/trace/setting", 501, ""),
        ("POST", "/v2/logging", 501, ""),
        ("POST", "/v2/models/model/generate", 501, ""),
    ],
)
async def test_what_there_is_not_is_told_in_the_form_of_the_protocol(
    routed: ServedMesh, method: str, path: str, status: int, allow: str
) -> None:
    answer = await routed.ask(method, path, b"")
    assert (answer.status, answer.headers["content-type"]) == (status, "application/json")
    assert answer.json["error"]
    assert answer.json["executed"] == "no"
    assert answer.headers.get("allow", "") == allow


async def test_others_keep_their_form(routed: ServedMesh) -> None:
    for path in ("/v2x", "/v3/models/model", "/nothing/there"):
        answer = await routed.post(path, [])
        assert answer.headers["content-type"] == "application/problem+json"


async def test_each_operation_is_counted_under_one_label(routed: ServedMesh) -> None:
    requests = routed.ingress.counters.requests
    before = requests.copy()
    await infer(routed, "double", {"x": [1]})
    await infer(routed, "double", {"x": [1]}, version="double")
    await infer(routed, "nowhere", {"x": [1]})
    for path in ("/v2", "/v2/health/live", "/v2/models/double", "/v2/models/model", "/v2/models/stats"):
        await routed.ask("GET", path)
    await routed.ask("POST", "/v2/logging")
    assert requests - before == {
        ("/v2/models/{model}/infer", 200): 2,
        ("/v2/models/{model}/infer", 404): 1,
        ("/v2", 200): 1,
        ("/v2/health/live", 200): 1,
        ("/v2/models/{model}", 200): 2,
        ("/v2/models/stats", 200): 1,
        ("/v2/_unsupported", 501): 1,
    }


async def test_pages_of_other_origins_are_refused_and_named_ones_are_told(routed: ServedMesh) -> None:
    answer = await infer(routed, "model", {"x": [1]}, headers={"origin": "https://evil.example"})
    assert (answer.status, answer.json["reason"]) == (403, "PERMISSION_DENIED")
    answer = await infer(routed, "model", {"x": [1]}, headers={"origin": "https://pages.example"})
    assert answer.headers["access-control-allow-origin"] == "https://pages.example"
    assert "inference-header-content-length" in answer.headers["access-control-expose-headers"]
    asks = {"origin": "https://pages.example", "access-control-request-method": "POST"}
    options = await routed.ask("OPTIONS", "/v2/models/model/infer", b"", asks)
    assert (options.status, options.headers["allow"]) == (204, "POST, OPTIONS")
    assert "POST" in options.headers["access-control-allow-methods"]


async def test_who_leaves_takes_the_inference_back(routed: ServedMesh) -> None:
    left = routed.ingress.counters.left
    before = left["/v2/models/{model}/infer"]
    async with http_connection(routed.address) as connection:
        body, _ = body_of({"x": np.ones(2)})
        await connection.send(
            f"POST /v2/models/model/infer HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n".encode()
        )
        connection.writer.write_eof()
        assert await connection.ended()
    assert left["/v2/models/{model}/infer"] == before + 1


async def test_what_is_full_says_so_and_probes_are_answered() -> None:
    async with served_mesh({"model": Model}, max_requests=1) as served:
        with served.ingress.requests.taken("192.0.2.1"):
            answer = await infer(served, "model", {"x": [1]})
            assert (answer.status, answer.headers["retry-after"]) == (503, "1")
            assert answer.json["error"] == "too many requests are in flight (--max-requests)"
            for path in ("/v2/health/live", "/v2/health/ready"):
                assert (await served.ask("GET", path)).status == 200


async def test_where_a_router_is_lost_another_one_is_asked() -> None:
    async with served_mesh({"model": Model}, routers=2) as served:
        first, second = served.mesh.router_addresses
        assert (await infer(served, "model", {"x": [1]})).status == 200
        await served.mesh.kill_router(first)
        assert (await served.ask("GET", "/v2/models/model/ready")).status == 200
        assert (await infer(served, "model", {"x": [1]}, version="model")).status == 200
        assert (await infer(served, "model", {"x": [1]})).status == 200
        await served.mesh.kill_router(second)
        assert (await served.ask("GET", "/v2/health/live")).status == 200
        assert (await served.ask("GET", "/v2/health/ready")).status == 400
        for answer in (await served.ask("GET", "/v2/models/model"), await infer(served, "model", version="model")):
            assert (answer.status, answer.json["reason"]) == (503, "ROUTER_LOST")
