"""Requests whose call depends on what its method takes, while no replica has reported that, or no router answers."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from websockets.asyncio.client import connect

from slotmesh.spec.routes import Route
from slotmesh.testing import Backend
from tests.contract.ingress.handlers import Kinds
from tests.support.ingresses import ServedMesh, served_mesh

OCTETS = "application/octet-stream"
JSON = "application/json"
FROM_ZERO = {"num_replicas": None, "autoscale": {"min": 0, "max": 1}}
IMAGE = bytes(range(7))


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("method", "path", "body", "headers", "result"),
    [
        ("POST", "/kinds/size", IMAGE, {"content-type": OCTETS}, b"7"),
        ("POST", "/kinds/size", IMAGE, {"content-type": OCTETS, "accept": JSON}, b"7"),
        ("POST", "/kinds/echo", IMAGE, {"content-type": OCTETS, "idempotency-key": "k"}, IMAGE),
        ("POST", "/kinds/measure?name=12", IMAGE, {"content-type": OCTETS}, b'{"name":"12","bytes":7,"end":[4,5,6]}'),
        ("GET", "/typed/12?numbers=1", b"", {}, b'{"word":"12","numbers":[1],"ratio":0.0,"flag":false}'),
    ],
)
async def test_a_request_waits_for_the_first_replica_and_is_read_as_its_method_wants(
    method: str, path: str, body: bytes, headers: dict[str, str], result: bytes
) -> None:
    route = Route(path="/typed/{word}", endpoint="kinds", method="typed", methods=("GET",))
    async with served_mesh({"kinds": Backend(Kinds, settings=FROM_ZERO)}, route) as served:
        assert not served.mesh.replica_ids("kinds")
        answer = await served.ask(method, path, body, headers)
        assert (answer.status, answer.body) == (200, result)


@pytest.mark.asyncio
async def test_messages_of_a_socket_are_read_as_their_method_wants_once_it_is_known() -> None:
    async with served_mesh({"kinds": Backend(Kinds, settings=FROM_ZERO)}) as served:
        async with connect(f"ws://{served.address}/kinds/typed?word=12&numbers=1") as socket:
            await socket.send("{}")
            assert json.loads(await socket.recv())["value"]["word"] == "12"


class Doubles:
    async def predict(self, x: list[float]) -> list[float]:
        return [2 * number for number in x]


@pytest.mark.asyncio
@pytest.mark.parametrize(("named", "status"), [(None, 200), ("predict", 200), ("nothing", 404)])
async def test_the_first_inference_is_a_call_of_the_method_that_there_is(named: str | None, status: int) -> None:
    tensor = {"name": "x", "shape": [2], "datatype": "FP64", "data": [1.0, 2.0]}
    body = {"inputs": [tensor], **({"parameters": {"method": named}} if named else {})}
    async with served_mesh({"doubles": Backend(Doubles, settings=FROM_ZERO)}) as served:
        answer = await served.ask("POST", "/v2/models/doubles/infer", json.dumps(body).encode())
        assert answer.status == status, answer.body
        if status == 200:
            assert answer.json["outputs"][0]["data"] == [2.0, 4.0]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served() -> AsyncIterator[ServedMesh]:
    async with served_mesh({"kinds": Kinds}) as mesh:
        yield mesh


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("accept", [JSON, "*/*"])
@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("/nothing/there", "ENDPOINT_NOT_FOUND"),
        ("/nothing/there?n=1", "ENDPOINT_NOT_FOUND"),
        ("/kinds/nothing", "METHOD_NOT_FOUND"),
        ("/kinds/nothing?n=1", "METHOD_NOT_FOUND"),
    ],
)
async def test_what_there_is_not_is_not_found_whatever_the_body_is(
    served: ServedMesh, path: str, reason: str, accept: str
) -> None:
    for kind, body in ((OCTETS, IMAGE), (JSON, b"")):
        answer = await served.ask("POST", path, body, {"content-type": kind, "accept": accept})
        assert (answer.status, answer.json["reason"], answer.json["executed"]) == (404, reason, "no")


@pytest.mark.asyncio
@pytest.mark.parametrize("path", ["/kinds/size", "/kinds/size?n=1"])
async def test_a_body_of_bytes_fails_as_any_other_while_no_router_answers(path: str) -> None:
    async with served_mesh({"kinds": Kinds}) as served:
        await served.mesh.kill_router(served.mesh.router_addresses[0])
        for kind, body in ((OCTETS, IMAGE), (JSON, b"")):
            headers = {"content-type": kind, "accept": JSON, "x-slotmesh-timeout": "200ms"}
            answer = await served.ask("POST", path, body, headers)
            assert (answer.status, answer.json["reason"]) == (504, "DEADLINE_IN_QUEUE")
            assert answer.json["executed"] == "no"
