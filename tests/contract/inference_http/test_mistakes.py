"""What is wrong with a request is said in the words of gRPC, as clients of the protocol read it, and not executed."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from tests.contract.inference.handlers import Model
from tests.contract.inference_http.bodies import LENGTH, arrays, body_of, infer
from tests.support.http_client import http_connection
from tests.support.ingresses import ServedMesh

pytestmark = pytest.mark.asyncio(loop_scope="module")

Request = tuple[bytes, Mapping[str, str]]
INFER = "/v2/models/model/infer"


def made(**fields: Any) -> bytes:
    """A request with one tensor, of which some fields are others."""
    return json.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": [2], "data": [1, 2]} | fields]}).encode()


def with_parameters(**parameters: Any) -> bytes:
    return body_of({"x": [1]}, parameters=parameters)[0]


def with_size(
    size: Any, behind: bytes, datatype: str = "FP32", shape: Any = (2,), length: str | None = None
) -> Request:
    said = {"name": "x", "datatype": datatype, "shape": shape, "parameters": {"binary_data_size": size}}
    text = json.dumps({"inputs": [said]}).encode()
    return text + behind, {LENGTH: str(len(text)) if length is None else length}


MISTAKES: dict[str, Callable[[], bytes | Request]] = {
    "body: Input data was truncated": lambda: b"",
    "body: JSON is malformed": lambda: b"\xff\xfe",
    "body: Expected object, got array": lambda: b"[]",
    "body: is nested too deep": lambda: b'{"inputs": [{"name": "x", "data": ' + b"[" * 20_000,
    "body: JSON has at most 80,000 values": lambda: b'{"inputs": [{"name": "x", "data": ' + b"[" * 200_000,
    "body: Object missing required field name": lambda: b'{"inputs": [{}]}',
    "inputs[0].datatype: must be one of": lambda: made(datatype="FLOAT"),
    "inputs[0].shape: each dimension": lambda: made(shape=[-1]),
    "inputs[0].shape: each dimension must be from 0 to 4294967295": lambda: made(shape=[2**40]),
    "inputs[0].data: a tensor of shape [3] has 3 elements, got 2": lambda: made(shape=[3]),
    "inputs[0].data: elements of FP32 are numbers": lambda: made(data=["a", "b"]),
    "inputs[0].data: elements of INT8 are from -128 to 127": lambda: made(datatype="INT8", data=[1, 128]),
    "inputs[0].data: BF16 is sent in binary only": lambda: made(datatype="BF16"),
    "inputs[0].data: is required": lambda: made(data=None),
    "inputs[0].parameters: shared memory": lambda: made(parameters={"shared_memory_region": "r"}),
    "inputs[0].parameters.binary_data_size: must be from 0 to 0": lambda: made(
        data=None, parameters={"binary_data_size": 8}
    ),
    "inputs[0].parameters.binary_data_size: must be from 0 to 8": lambda: with_size(9, bytes(8)),
    "inputs[0].parameters.binary_data_size: must be from 0": lambda: with_size(-8, bytes(8)),
    "inputs[0].parameters.binary_data_size: must be": lambda: with_size(2**62, bytes(8)),
    "inputs[0].parameters.binary_data_size: must be from": lambda: with_size("8", bytes(8)),
    "inputs[0].parameters.binary_data_size: must be from 0 to": lambda: with_size(True, bytes(8)),
    "FP32 of shape [2] has 8 bytes, got 7": lambda: with_size(7, bytes(7)),
    "FP32 of shape [4294967295, 4294967295] has": lambda: with_size(8, bytes(8), shape=[2**32 - 1, 2**32 - 1]),
    "2 elements of BYTES of shape [2] have 8 bytes at least, got 7": lambda: with_size(7, bytes(7), "BYTES"),
    "body: 1 bytes are left behind the tensors": lambda: with_size(8, bytes(9)),
    "Inference-Header-Content-Length: must be from 0 to": lambda: with_size(8, bytes(8), length="9999"),
    "Inference-Header-Content-Length: must be a number of bytes": lambda: with_size(8, bytes(8), length="-1"),
    "Inference-Header-Content-Length: must be a number": lambda: with_size(8, bytes(8), length="9" * 30),
    "body: Input data was": lambda: with_size(8, bytes(8), length="20"),
    "outputs[0].parameters.classification: is not supported": lambda: body_of(
        {"x": [1]}, outputs=[{"name": "o", "parameters": {"classification": 3}}]
    )[0],
    "parameters.timeout: must be microseconds": lambda: with_parameters(timeout=-1),
    "parameters.priority: must be a whole number": lambda: with_parameters(priority="1"),
    "parameters.sequence_id: must be": lambda: with_parameters(sequence_id=True),
    "parameters.method: must be the name": lambda: with_parameters(method=1),
    "parameters.method: at most 256 characters, got 257": lambda: with_parameters(method="m" * 257),
    "parameters: at most 64": lambda: with_parameters(**{f"p{n}": 1 for n in range(65)}),
    "parameters: Expected": lambda: with_parameters(own=[1]),
    "'slotmesh-x' is reserved": lambda: with_parameters(**{"slotmesh-x": 1}),
    "X-Slotmesh-Colour: there is no such header": lambda: (made(), {"x-slotmesh-colour": "blue"}),
    "with a version": lambda: (made(), {"x-slotmesh-shard-key": "k", "version": "model-v1"}),
    "parameters.own: is a number of more than 64 bits": lambda: (with_parameters(own=2**70), {"version": "model-v1"}),
}


@pytest.mark.parametrize("words", MISTAKES)
async def test_a_mistake_names_its_field(served: ServedMesh, words: str) -> None:
    [handler] = served.mesh.instances("model-v1")
    assert isinstance(handler, Model)
    before = len(handler.shapes)
    sent = MISTAKES[words]()
    body, given = sent if isinstance(sent, tuple) else (sent, {})
    headers = dict(given)
    version = headers.pop("version", "")
    path = INFER if not version else f"/v2/models/model/versions/{version}/infer"
    answer = await served.ask("POST", path, body, headers)
    assert (answer.status, answer.headers["content-type"]) == (400, "application/json"), answer.body
    assert (answer.json["reason"], answer.json["executed"]) == ("BAD_REQUEST", "no")
    assert words in answer.json["error"]
    assert len(handler.shapes) == before
    assert served.ingress.bodies.held == 0


async def test_what_the_method_does_not_take(served: ServedMesh) -> None:
    broken = (9).to_bytes(4, "little") + b"short"
    cases: list[tuple[str, str, Request]] = [
        ("unknown field y", "only", body_of({"y": np.ones(2)})),
        ("missing required field", "only", body_of({})),
        ("byte string 0 of 1 has 9 bytes", "model", with_size(9, broken, "BYTES", [1])),
        ("booleans has bytes other than 0 and 1", "model", with_size(1, b"\x02", "BOOL", [1])),
    ]
    for words, model, (body, headers) in cases:
        answer = await served.ask("POST", f"/v2/models/{model}/infer", body, headers)
        assert (answer.status, answer.json["reason"], answer.json["executed"]) == (400, "BAD_ARGUMENTS", "no"), words
        assert words in answer.json["error"]


@pytest.mark.parametrize(
    ("status", "reason", "executed", "model", "version", "parameters"),
    [
        (404, "ENDPOINT_NOT_FOUND", "no", "nowhere", "", {}),
        (404, "ENDPOINT_NOT_FOUND", "no", "nowhere", "1", {}),
        (404, "BACKEND_NOT_FOUND", "no", "model", "3", {}),
        (404, "METHOD_NOT_FOUND", "no", "model", "", {"method": "nowhere"}),
        (404, "METHOD_NOT_FOUND", "no", "model", "", {"method": "_private"}),
        (404, "METHOD_NOT_FOUND", "no", "several", "several", {}),
        (400, "BAD_REQUEST", "no", "mixed", "only", {"sequence_id": 1}),
        (500, "HANDLER_ERROR", "yes", "model", "", {"method": "fails"}),
        (500, "HANDLER_ERROR", "yes", "model", "model-v2", {"method": "fails"}),
        (501, "NOT_IMPLEMENTED", "no", "model", "model-v1", {"method": "count"}),
        (400, "BAD_REQUEST", "no", "m" * 1025, "", {}),
    ],
)
async def test_what_there_is_not(
    served: ServedMesh, status: int, reason: str, executed: str, model: str, version: str, parameters: Any
) -> None:
    inputs = {} if parameters.get("method") == "fails" else {"x": np.ones(2)}
    answer = await infer(served, model, inputs, version=version, parameters=parameters)
    assert (answer.status, answer.json["reason"], answer.json["executed"]) == (status, reason, executed), answer.body
    assert answer.json["error"]
    assert "log_ref" in answer.json or reason != "HANDLER_ERROR"
    assert b"Traceback" not in answer.body


async def test_a_failure_says_what_a_handler_said(served: ServedMesh) -> None:
    answer = await infer(served, "model", parameters={"method": "fails"})
    assert answer.json["error"].endswith("ValueError: no such luck")
    strange = await infer(served, "model", parameters={"method": "strange"})
    assert (strange.status, "complex128 is no tensor" in strange.json["error"]) == (500, True)


async def test_bodies_that_break_off_are_no_requests(served: ServedMesh) -> None:
    body, headers = with_size(8, bytes(8))
    async with http_connection(served.address) as connection:
        head = f"POST {INFER} HTTP/1.1\r\nhost: x\r\n{LENGTH}: {headers[LENGTH]}\r\ncontent-length: {len(body)}\r\n\r\n"
        await connection.send(head.encode() + body[:-3])
        connection.writer.write_eof()
        assert await connection.ended()
    assert arrays(await infer(served, "model", {"x": [1]}))["output"].tolist() == [1]
    assert served.ingress.bodies.held == 0
