"""The Open Inference Protocol as JSON and binary: what an ingress will read and write."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from slotmesh.calls.method_outlines import FIXED, MethodTensors, TensorType
from slotmesh.codec import decoding_bounds
from slotmesh.errors import Executed, Failure, Reason
from slotmesh.oip.http import (
    HttpAnswer,
    answer_to_http,
    error_to_json,
    inference_from_http,
    metadata_to_json,
    server_to_json,
)
from slotmesh.oip.model import MAX_JSON_BYTES, MAX_TYPED_ELEMENTS, InferenceAnswer, InvalidRequest, Tensor


def body(*inputs: Mapping[str, Any], **more: Any) -> bytes:
    return json.dumps({"inputs": inputs, **more}).encode()


def tensor(**fields: Any) -> dict[str, Any]:
    return {"name": "x", "datatype": "FP32", "shape": [2], "data": [1, 2.5]} | fields


def read(text: bytes, json_size: int | None = None) -> Any:
    return inference_from_http("m", "v", text, json_size)


def written(answer: InferenceAnswer, inference: Any) -> HttpAnswer:
    http = answer_to_http(answer, inference)
    assert isinstance(http, HttpAnswer)
    return http


def test_a_request() -> None:
    inference = read(body(tensor(), id="7", parameters={"priority": 1}, outputs=[{"name": "o"}]))
    request = inference.request
    assert (request.model, request.version, request.request_id, request.outputs) == ("m", "v", "7", ["o"])
    assert request.parameters == {"priority": 1}
    assert request.inputs == [Tensor("x", "FP32", (2,), np.asarray([1, 2.5], "<f4").tobytes())]
    assert not inference.is_binary("o")


@pytest.mark.parametrize("datatype", [name for name, each in FIXED.items() if each.typed])
def test_elements_of_each_datatype_nested_and_flat(datatype: str) -> None:
    data: list[Any] = [[False, True], [True, False]] if datatype == "BOOL" else [[0, 1], [2, 3]]
    expected = np.asarray(data, FIXED[datatype].dtype).tobytes()
    (found,) = read(body(tensor(datatype=datatype, shape=[2, 2], data=data))).request.inputs
    (flat,) = read(body(tensor(datatype=datatype, shape=[2, 2], data=data[0] + data[1]))).request.inputs
    assert found.data == flat.data == expected
    answer = InferenceAnswer(model="m", version="v", outputs=[found])
    said = json.loads(written(answer, read(b"{}")).body)
    assert said["outputs"] == [{"name": "x", "datatype": datatype, "shape": [2, 2], "data": data[0] + data[1]}]


@pytest.mark.parametrize("shape", [(65_536,), (8_192, 8), (13_000, 5)])
def test_as_many_elements_as_there_may_be(shape: tuple[int, ...]) -> None:
    data = np.arange(np.prod(shape), dtype="<f8").reshape(shape)
    (found,) = read(body(tensor(datatype="FP64", shape=shape, data=data.tolist()))).request.inputs
    assert found.data == data.tobytes()


def test_punctuation_inside_of_texts_counts_as_nothing() -> None:
    texts = ['[{"a": "\\",}]' * 4, "[,{" * 100_000, "\\" * 9, '"'] * 2
    (found,) = read(body(tensor(datatype="BYTES", shape=[8], data=texts))).request.inputs
    assert found.data == b"".join(len(it).to_bytes(4, "little") + it.encode() for it in texts)


HOSTILE = {
    "nested": lambda size: b"[%b]" % b",".join([b"[" * 28 + b"1" + b"]" * 28] * (size // 60)),
    "empty": lambda size: b"[%b]" % b",".join([b"[]"] * (size // 3)),
    "objects": lambda size: b"[%b]" % b",".join([b'{"a":1}'] * (size // 8)),
    "numbers": lambda size: b"[%b]" % b",".join([b"1"] * (size // 2)),
    "strings": lambda size: b"[%b]" % b",".join([b'","'] * (size // 4)),
}


@pytest.mark.parametrize("where", ["data", "shape", "parameters", "outputs", "inputs", "other"])
@pytest.mark.parametrize("kind", HOSTILE)
def test_what_would_make_very_many_values_is_not_decoded(
    kind: str, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slotmesh.oip.http._decoded", lambda *_: pytest.fail("was decoded"))
    values = HOSTILE[kind](MAX_JSON_BYTES - 200)
    text = b'{"%b":%b}' % (where.encode(), values)
    if where in {"data", "shape", "parameters"}:
        text = body(tensor(**{where: "HERE"})).replace(b'"HERE"', values)
    with pytest.raises(InvalidRequest, match="JSON has at most 80,000 values"):
        read(text)


def test_numbers_at_the_ends_of_floats_are_read_by_the_quick_way(monkeypatch: pytest.MonkeyPatch) -> None:
    ways: list[bool] = []
    look = decoding_bounds.has_costly_numbers

    def noted(text: bytes) -> bool:
        ways.append(look(text))
        return ways[-1]

    monkeypatch.setattr(decoding_bounds, "has_costly_numbers", noted)
    (found,) = read(body(tensor(datatype="FP64", shape=[500], data=[5e-324] * 500))).request.inputs
    assert found.data == np.full(500, 5e-324).tobytes()
    read(body(tensor(), parameters={f"p{index}": 5e-324 for index in range(60)}))
    assert ways == [True, True]


def test_texts() -> None:
    (found,) = read(body(tensor(datatype="BYTES", data=["a", "ü,"]))).request.inputs
    assert found.data == b"\x01\0\0\0a\x03\0\0\0" + "ü,".encode()
    said = json.loads(written(InferenceAnswer(model="m", version="v", outputs=[found]), read(b"{}")).body)
    assert said["outputs"][0]["data"] == ["a", "ü,"]


def test_binary_tensors_both_ways() -> None:
    halves = np.asarray([0.5, 1.5], "<f2").tobytes()
    inputs = [
        tensor(datatype="FP16", parameters={"binary_data_size": 4}, data=None),
        tensor(name="y", shape=[1], data=[3]),
        tensor(name="z", datatype="INT8", shape=[3], parameters={"binary_data_size": 3}, data=None),
    ]
    text = body(*inputs, outputs=[{"name": "x", "parameters": {"binary_data": True}}, {"name": "y"}])
    inference = read(text + halves + b"\x01\x02\x03", len(text))
    assert [bytes(each.data) for each in inference.request.inputs] == [halves, np.float32(3).tobytes(), b"\x01\x02\x03"]
    outputs = [inference.request.inputs[0], inference.request.inputs[1]]
    answer = written(InferenceAnswer(model="m", version="v", request_id="i", outputs=outputs), inference)
    assert (answer.content_type, answer.body[answer.json_size :]) == ("application/octet-stream", halves)
    said = json.loads(answer.body[: answer.json_size])
    assert said["id"] == "i"
    assert [each.get("data") for each in said["outputs"]] == [None, [3.0]]
    assert said["outputs"][0]["parameters"] == {"binary_data_size": 4}


def test_all_outputs_in_binary() -> None:
    inference = read(
        body(
            tensor(),
            parameters={"binary_data_output": True},
            outputs=[
                {"name": "x"},
                {"name": "y", "parameters": {"binary_data": False}},
            ],
        )
    )
    assert (inference.is_binary("x"), inference.is_binary("y"), inference.is_binary("z")) == (True, False, True)


MISTAKES: dict[str, Any] = {
    "body: ": lambda: read(b"{"),
    "Inference-Header-Content-Length: must be": lambda: read(b"{}", 3),
    "body: Object missing": lambda: read(b'{"inputs": [{}]}'),
    "body: JSON has at most 2,097,152 bytes, got 2,097,153: send tensors in binary": lambda: read(
        b" " * (MAX_JSON_BYTES + 1)
    ),
    "body: JSON has at most 80,000 values": lambda: read(b'{"other": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
    "body: is nested too deep": lambda: read(b'{"other": ' + b"[" * 10_000 + b"]" * 10_000 + b"}"),
    "inputs[0].data: must be lists of one": lambda: read(body(tensor()).replace(b"[1, 2.5]", b"[" * 99 + b"]" * 99)),
    "inputs[0].parameters: shared memory": lambda: read(body(tensor(parameters={"shared_memory_region": "r"}))),
    "outputs[0].parameters: shared memory": lambda: read(
        body(outputs=[{"name": "o", "parameters": {"shared_memory_region": "r"}}])
    ),
    "body: 1 bytes are left": lambda: read(b"{}x", 2),
    "inputs[0].data: is required": lambda: read(body({"name": "x", "datatype": "FP32", "shape": [1]})),
    "inputs[0].data: a tensor of shape [3] has 3": lambda: read(body(tensor(shape=[3]))),
    "inputs[0].data: must be lists of one depth": lambda: read(body(tensor(data=[1, [2]]))),
    "inputs[0].data: elements of FP32 are numbers": lambda: read(body(tensor(data=[1, "a"]))),
    "inputs[0].data: elements of INT8 are from -128": lambda: read(body(tensor(datatype="INT8", data=[1, 200]))),
    "inputs[0].data: elements of BOOL are true": lambda: read(body(tensor(datatype="BOOL", data=[1, 2]))),
    "inputs[0].data: elements of BYTES are texts": lambda: read(body(tensor(datatype="BYTES", data=["a", 1]))),
    "inputs[0].data: FP16 is sent in binary": lambda: read(body(tensor(datatype="FP16"))),
    "inputs[0].data: at most 65536 elements in all, of BYTES 16384: send more in binary": lambda: read(
        body(tensor(shape=[65_537], data=[0] * 65_537))
    ),
    "inputs[0].data: at most 65536 elements in all, of BYTES": lambda: read(
        body(tensor(datatype="BYTES", shape=[16_385], data=["a"] * 16_385))
    ),
    "inputs[1].data: at most 65536": lambda: read(
        body(tensor(shape=[65_536], data=[0] * 65_536), tensor(name="y", shape=[1], data=[0]))
    ),
    "inputs[0].data: cannot be combined with": lambda: read(body(tensor(parameters={"binary_data_size": 0}))),
    "inputs[0].parameters.binary_data_size: must be": lambda: read(body(tensor(parameters={"binary_data_size": 9}))),
    "inputs[0].shape: at most 32": lambda: read(body(tensor(shape=[1] * 33))),
    "inputs[0].shape: Expected int": lambda: read(body(tensor(shape=["a"]))),
    "inputs[0].datatype: must be one of": lambda: read(body(tensor(datatype="X"))),
    "inputs[1].name: 'x' is there twice": lambda: read(body(tensor(), tensor())),
    "outputs[0].parameters.classification": lambda: read(
        body(outputs=[{"name": "o", "parameters": {"classification": 1}}])
    ),
    "parameters: ": lambda: read(body(parameters={"a": []})),
}


@pytest.mark.parametrize("words", MISTAKES)
def test_a_mistake_names_its_field(words: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        MISTAKES[words]()
    assert words in str(caught.value)
    assert (caught.value.failure.reason, caught.value.failure.executed) == (Reason.BAD_REQUEST, Executed.NO)


def test_an_output_that_is_no_text_must_be_asked_for_in_binary() -> None:
    output = Tensor("o", "BYTES", (1,), b"\x01\0\0\0\xff")
    failure = answer_to_http(InferenceAnswer(model="m", version="v", outputs=[output]), read(b"{}"))
    assert isinstance(failure, Failure)
    assert (failure.reason, failure.executed) == (Reason.BAD_REQUEST, Executed.YES)
    assert "o has bytes that are no text" in failure.message


def test_an_output_of_bytes_that_cannot_be_cut_is_the_handlers_mistake() -> None:
    output = Tensor("o", "BYTES", (1,), b"\x09\0\0\0x")
    failure = answer_to_http(InferenceAnswer(model="m", version="v", outputs=[output]), read(b"{}"))
    assert isinstance(failure, Failure)
    assert (failure.reason, failure.executed) == (Reason.INTERNAL, Executed.YES)


def test_what_json_would_take_too_long_for_is_in_binary_unasked() -> None:
    many = Tensor("many", "UINT8", (MAX_TYPED_ELEMENTS + 1,), bytes(MAX_TYPED_ELEMENTS + 1))
    strings = Tensor("strings", "BYTES", (16_385,), (1).to_bytes(4, "little").join([b"", *[b"x"] * 16_385]))
    text = (MAX_JSON_BYTES + 1).to_bytes(4, "little") + b"x" * (MAX_JSON_BYTES + 1)
    for large in (many, strings, Tensor("large", "BYTES", (1,), text)):
        small = Tensor("small", "UINT8", (1,), b"\x07")
        answer = written(InferenceAnswer(model="m", version="v", outputs=[small, large]), read(b"{}"))
        said = json.loads(answer.body[: answer.json_size])
        assert said["outputs"][0]["data"] == [7]
        assert said["outputs"][1]["parameters"] == {"binary_data_size": len(large.data)}


def test_failures_and_what_is_told() -> None:
    said = json.loads(error_to_json("no", "ENDPOINT_NOT_FOUND", "no", log_ref="1"))
    assert said == {"error": "no", "reason": "ENDPOINT_NOT_FOUND", "executed": "no", "log_ref": "1"}
    assert json.loads(server_to_json("1"))["name"] == "slotmesh"
    tensors = MethodTensors(inputs=(TensorType(name="x", datatype="FP32", shape=(-1,)),))
    told = json.loads(metadata_to_json("m", ["v"], "infer", tensors))
    assert told["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1]}]
    assert told["properties"] == {"method": "infer"}
    assert json.loads(metadata_to_json("m", [], "", None))["outputs"] == []


ABSENT: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("parameters of the request", {"parameters": None}, {}),
    ("a parameter of the request", {"parameters": {"priority": None, "content_type": None, "n": 1}}, {}),
    ("id", {"id": None}, {}),
    ("outputs", {"outputs": None}, {}),
    ("parameters of an output", {"outputs": [{"name": "o", "parameters": None}]}, {}),
    ("a parameter of an output", {"outputs": [{"name": "o", "parameters": {"binary_data": None}}]}, {}),
    ("parameters of an input", {}, {"parameters": None}),
    ("a parameter of an input", {}, {"parameters": {"content_type": None, "binary_data_size": None}}),
    (
        "all of them",
        {"parameters": None, "id": None, "outputs": [{"name": "o", "parameters": None, "data": None}]},
        {"parameters": {"content_type": None, "headers": None}},
    ),
]


@pytest.mark.parametrize(("fields", "of_input"), [each[1:] for each in ABSENT], ids=[each[0] for each in ABSENT])
def test_a_field_that_is_null_is_absent(fields: dict[str, Any], of_input: dict[str, Any]) -> None:
    inference = read(body(tensor(**of_input), **fields))
    assert inference.request.inputs == [Tensor("x", "FP32", (2,), np.asarray([1, 2.5], "<f4").tobytes())]
    assert inference.request.request_id == ""
    assert dict(inference.request.parameters) == ({"n": 1} if (fields.get("parameters") or {}).get("n") else {})
    assert list(inference.request.outputs) == [each["name"] for each in fields.get("outputs") or []]
    assert not inference.is_binary("o")


def test_inputs_that_are_null_are_none() -> None:
    assert list(read(b'{"inputs": null}').request.inputs) == []


@pytest.mark.parametrize(
    ("datatype", "value"),
    [
        ("FP32", 1e39),
        ("FP32", -1e39),
        ("FP32", 3.4028235677973366e38),
        ("FP32", 10**39),
        ("FP64", 10**400),
        ("BOOL", 2),
        ("BOOL", -1),
        ("BOOL", 1.0),
        ("BOOL", 256),
        *((name, 1 << 8 * each.size) for name, each in FIXED.items() if "INT" in name),
        *((name, -(1 << 8 * each.size - 1) - 1) for name, each in FIXED.items() if "INT" in name),
        *((name, 1.5) for name in FIXED if "INT" in name),
        *((name, None) for name in FIXED if FIXED[name].typed),
    ],
)
def test_an_element_that_the_datatype_cannot_hold_is_refused(datatype: str, value: Any) -> None:
    text = json.dumps({"inputs": [tensor(datatype=datatype, shape=[2], data=[0, 0])]}).encode()
    with pytest.raises(InvalidRequest) as caught:
        read(text.replace(b"[0, 0]", b"[0, " + json.dumps(value).encode() + b"]"))
    assert caught.value.field.startswith("inputs[0].data") or caught.value.field == "body"


def test_the_largest_fp32_is_itself() -> None:
    (found,) = read(body(tensor(data=[3.4028234663852886e38, -3.4028234663852886e38]))).request.inputs
    assert np.frombuffer(found.data, "<f4").tolist() == [3.4028234663852886e38, -3.4028234663852886e38]
