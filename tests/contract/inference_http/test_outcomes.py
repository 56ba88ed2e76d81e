"""What a handler chooses, times that are over, and clients that leave: as of all requests, in the protocol's form."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from slotmesh.http_status import HTTP_STATUS_OF
from slotmesh.status import STATUS_NUMBERS
from tests.contract.inference_http.bodies import arrays, body_of, infer
from tests.contract.ingress.handlers import Kinds
from tests.support.http_client import http_connection, request_bytes
from tests.support.ingresses import ServedMesh, served_mesh
from tests.support.wait import wait_until, within

pytestmark = pytest.mark.asyncio(loop_scope="module")

WAITING = body_of({}, parameters={"method": "wait"})[0]


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def served() -> AsyncIterator[ServedMesh]:
    async with served_mesh({"kinds": Kinds}) as mesh:
        yield mesh


@pytest.mark.parametrize("version", ["", "kinds"])
@pytest.mark.parametrize("status", sorted(STATUS_NUMBERS))
async def test_a_handler_chooses_the_status(served: ServedMesh, status: str, version: str) -> None:
    body = {"inputs": [{"name": "status", "datatype": "BYTES", "shape": [1], "data": [status]}]}
    path = f"/v2/models/kinds{f'/versions/{version}' if version else ''}/infer"
    answer = await served.ask("POST", path, {**body, "parameters": {"method": "abort"}})
    assert (answer.status, answer.headers["content-type"]) == (HTTP_STATUS_OF[status], "application/json")
    assert (answer.json["reason"], answer.json["executed"]) == ("HANDLER_ERROR", "yes")
    assert "the handler says so" in answer.json["error"]


@pytest.mark.parametrize("version", ["", "kinds"])
async def test_the_shorter_time_counts(served: ServedMesh, version: str) -> None:
    for micros, header in ((50_000, "1h"), (3_600_000_000, "50ms"), (0, "50ms"), (50_000, "")):
        parameters = {"method": "wait", "timeout": micros}
        headers = {"x-slotmesh-timeout": header} if header else {}
        answer = await infer(served, "kinds", version=version, parameters=parameters, headers=headers)
        assert (answer.status, answer.json["reason"]) == (504, "DEADLINE_RUNNING")


@pytest.mark.parametrize("path", ["/v2/models/kinds/infer", "/v2/models/kinds/versions/kinds/infer"])
async def test_who_leaves_takes_the_inference_back(served: ServedMesh, path: str) -> None:
    [kinds] = served.mesh.instances("kinds")
    for event in (kinds.gate, kinds.started, kinds.cancelled):
        event.clear()
    async with http_connection(served.address) as connection:
        await connection.send(request_bytes("POST", path, WAITING))
        await within(kinds.started.wait(), "a call that has started")
        connection.writer.write_eof()
        assert await connection.ended()
    await wait_until(kinds.cancelled.is_set, what="the inference to be taken back")
    assert served.ingress.bodies.held == 0


async def test_inferences_of_a_sequence_run_one_after_another(served: ServedMesh) -> None:
    [kinds] = served.mesh.instances("kinds")
    kinds.gate.clear()
    kinds.started.clear()
    first = asyncio.ensure_future(infer(served, "kinds", parameters={"method": "wait", "sequence_id": "s"}))
    await within(kinds.started.wait(), "a call that has started")
    kinds.started.clear()
    second = asyncio.ensure_future(infer(served, "kinds", parameters={"method": "wait", "sequence_id": "s"}))
    other = await infer(served, "kinds", {"a": [1]}, parameters={"method": "add", "sequence_id": "t"})
    assert arrays(other)["output"].tolist() == [2]
    assert not kinds.started.is_set()
    kinds.gate.set()
    for answer in await asyncio.gather(first, second):
        assert arrays(answer)["output"].tolist() == [b"done"]
