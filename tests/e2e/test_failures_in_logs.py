"""What a client sees fail is found in the log, by the id that the error carries; handlers' own logs say which call."""

from __future__ import annotations

import json
from typing import Any

import pytest

import slotmesh
from tests.support.http_client import http
from tests.support.mesh import MeshRun, started_mesh
from tests.support.tiers import long
from tests.support.wait import wait_until

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(120)]

HANDLER = "tests.e2e.traced_handlers:Traced"


async def lines_with(mesh: MeshRun, text: str) -> list[str]:
    await wait_until(lambda: text in mesh.log_text(), timeout=60, what=f"{text} in the log")
    return [line for line in mesh.log_text().splitlines() if text in line]


@pytest.mark.parametrize("log_format", ["json", long("console")])
async def test_failures_are_found_in_the_log(log_format: str) -> None:
    async with started_mesh(HANDLER, env={"SLOTMESH_LOG_FORMAT": log_format}, flags=["--log-level=info"]) as mesh:
        async with slotmesh.connect(mesh.router_address) as client:
            endpoint = client.endpoint("Traced")
            with pytest.raises(slotmesh.HandlerError) as raised:
                await endpoint.fails(1)
            with pytest.raises(slotmesh.NotFound) as unknown:
                await endpoint.nothing_of_the_kind(1)
            with pytest.raises(slotmesh.InvalidArgument) as unary:
                await endpoint.waits.unary("no number")
            await endpoint.logs("own words")
            for error in (raised, unknown, unary):
                (line, *_) = await lines_with(mesh, error.value.metadata["log_ref"])
                assert_says(line, log_format, endpoint="Traced")
            (line, *_) = await lines_with(mesh, raised.value.metadata["log_ref"])
            assert_says(line, log_format, endpoint="Traced", call_id="1")
            assert "replica" in line
            assert "session" in line
            (line, *_) = await lines_with(mesh, "own words")
            assert_says(line, log_format, endpoint="Traced", call_id="3")


@pytest.mark.long
async def test_an_id_of_a_request_is_in_the_logs_of_ingress_and_replica_and_of_the_handler() -> None:
    flags = ["--log-level=info", "--http=0"]
    async with started_mesh(HANDLER, env={"SLOTMESH_LOG_FORMAT": "console"}, flags=flags) as mesh:
        answer = await http(mesh.http_address, "POST", "/Traced/fails", [1], {"x-request-id": "order-1"})
        assert (answer.status, answer.headers["x-request-id"]) == (500, "order-1")
        for words in ("a request failed", "handler raised"):
            [line] = [it for it in await lines_with(mesh, words) if "request_id=order-1" in it]
            assert answer.json["log_ref"] in line
        answer = await http(mesh.http_address, "POST", "/Traced/logs", ["own words"], {"x-request-id": "order-2"})
        assert answer.status == 200
        (line, *_) = await lines_with(mesh, "own words")
        assert "request_id=order-2" in line


def assert_says(line: str, log_format: str, **facts: Any) -> None:
    if log_format == "json":
        said = json.loads(line[line.index("{") :])
        assert {name: said.get(name) for name in facts} == facts
    else:
        for name, fact in facts.items():
            assert f"{name}={fact}" in line
