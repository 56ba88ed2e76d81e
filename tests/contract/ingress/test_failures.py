"""Failures by HTTP: the status, the problem document, and who may call."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
import pytest_asyncio

from slotmesh.errors import Executed, Reason
from slotmesh.http_status import HTTP_STATUS_OF, http_status
from slotmesh.status import STATUS_NUMBERS, STATUS_OF
from tests.contract.ingress.handlers import Kinds
from tests.support.http_client import http_connection
from tests.support.ingresses import ServedMesh, served_mesh
from tests.support.wait import within


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served() -> AsyncIterator[ServedMesh]:
    async with served_mesh({"kinds": Kinds}, max_body_size=2_000) as mesh:
        yield mesh


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.mark.parametrize("status", sorted(STATUS_NUMBERS))
async def test_a_handler_chooses_the_status(served: ServedMesh, status: str) -> None:
    answer = await served.post("/kinds/abort", [status])
    assert (answer.status, answer.headers["content-type"]) == (HTTP_STATUS_OF[status], "application/problem+json")
    problem = answer.json
    assert (problem["status"], problem["reason"], problem["executed"]) == (answer.status, "HANDLER_ERROR", "yes")
    assert problem["type"] == "urn:slotmesh:problem:handler-error"
    assert "the handler says so" in problem["detail"]


async def test_an_exception_is_its_type_and_text_and_where_the_log_has_it(served: ServedMesh) -> None:
    answer = await served.post("/kinds/fail")
    problem = answer.json
    assert (answer.status, problem["reason"], problem["executed"]) == (500, "HANDLER_ERROR", "yes")
    assert "ValueError: no such digit" in problem["detail"]
    assert len(problem["log_ref"]) == 16
    assert b"Traceback" not in answer.body


@pytest.mark.parametrize(
    ("path", "body", "status", "reason"),
    [
        ("/nothing/add", b"[1]", 404, "ENDPOINT_NOT_FOUND"),
        ("/kinds/nothing", b"[1]", 404, "METHOD_NOT_FOUND"),
        ("/kinds/_calls", b"[1]", 404, "METHOD_NOT_FOUND"),
        ("/kinds/add", b'["x"]', 400, "BAD_ARGUMENTS"),
        ("/kinds/add", b"{nonsense", 400, "BAD_ARGUMENTS"),
        ("/kinds/add", b"[" + b"1" * 3_000 + b"]", 413, "PAYLOAD_TOO_LARGE"),
    ],
)
async def test_what_did_not_run_says_so(served: ServedMesh, path: str, body: bytes, status: int, reason: str) -> None:
    answer = await served.ask("POST", path, body)
    assert (answer.status, answer.json["reason"], answer.json["executed"]) == (status, reason, "no")


async def test_a_time_that_is_over_is_a_gateway_timeout(served: ServedMesh) -> None:
    answer = await served.post("/kinds/wait", X_Slotmesh_Timeout="50ms")
    assert (answer.status, answer.json["reason"]) == (504, "DEADLINE_RUNNING")


@pytest.mark.parametrize("reason", Reason, ids=lambda it: it.value)
async def test_each_reason_has_a_status_of_http(reason: Reason) -> None:
    status = http_status(STATUS_OF[reason].name, reason, Executed.NO)
    assert 400 <= status < 600
    assert http_status("PERMISSION_DENIED", Reason.HANDLER_ERROR, Executed.YES) == 403
    assert http_status("INVALID_ARGUMENT", Reason.PAYLOAD_TOO_LARGE, Executed.YES) == 500


async def test_a_call_that_a_stop_ends_is_told_so() -> None:
    async with AsyncExitStack() as stack:
        mesh = await stack.enter_async_context(served_mesh({"kinds": Kinds}, graceful_timeout="50ms"))
        (kinds,) = mesh.mesh.instances("kinds")
        asked = asyncio.ensure_future(mesh.post("/kinds/wait"))
        await within(kinds.started.wait(), "a call that has started")
        await stack.aclose()
        answer = await asked
        assert (answer.status, answer.json["reason"]) == (503, "DRAINING")
        assert (answer.json["executed"], answer.headers["retry-after"]) == ("unknown", "1")


async def test_what_is_full_says_when_to_come_again() -> None:
    async with served_mesh({"kinds": Kinds}, max_requests=1) as served:
        async with http_connection(served.address) as waiting:
            await waiting.send(b"POST /kinds/wait HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n")
            [kinds] = served.mesh.instances("kinds")
            await within(kinds.started.wait(), "a call that has started")
            answer = await served.post("/kinds/add", [1])
            assert (answer.status, answer.headers["retry-after"], answer.json["executed"]) == (503, "1", "no")
            kinds.gate.set()
            assert (await waiting.answer()).json == "done"
