"""What is wrong with a request is said with its field, and nothing is executed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc
import numpy as np
import pytest

from slotmesh.inference import grpc_inference_service_pb2 as pb
from tests.contract.inference.conftest import Models
from tests.contract.inference.inference_client import request, told

pytestmark = pytest.mark.asyncio(loop_scope="module")


def made(**fields: Any) -> pb.ModelInferRequest:
    """A request with one tensor, of which some fields are others."""
    tensor: Any = {"name": "x", "datatype": "FP32", "shape": [2]} | {
        name: fields.pop(name) for name in ("name", "datatype", "shape", "contents", "parameters") if name in fields
    }
    fields.setdefault("raw_input_contents", [bytes(8)] if "contents" not in tensor else [])
    return pb.ModelInferRequest(model_name="model", inputs=[tensor], **fields)


def with_parameter(name: str, **value: Any) -> pb.ModelInferRequest:
    wrong = made()
    wrong.parameters[name].CopyFrom(pb.InferParameter(**value))
    return wrong


FP32 = pb.InferTensorContents(fp32_contents=[1.0, 2.0])
MISTAKES: dict[str, Callable[[], pb.ModelInferRequest]] = {
    "model_name: is required": pb.ModelInferRequest,
    "inputs[0].name: is required": lambda: made(name=""),
    "inputs[1].name: 'x' is there twice": lambda: pb.ModelInferRequest(model_name="model", inputs=2 * made().inputs[:]),
    "inputs: at most 256": lambda: pb.ModelInferRequest(model_name="model", inputs=257 * made().inputs[:]),
    "outputs: at most 256": lambda: made(outputs=257 * [{"name": "o"}]),
    "inputs[0].datatype: must be one of": lambda: made(datatype="FLOAT"),
    "inputs[0].shape: each dimension must be from 0": lambda: made(shape=[-1]),
    "inputs[0].shape: at most 32 dimensions": lambda: made(shape=33 * [1]),
    "inputs[0].shape: a tensor without elements": lambda: made(shape=[0, 2**31], raw_input_contents=[b""]),
    "inputs[0].shape: at most 65536 elements of BYTES": lambda: made(datatype="BYTES", shape=[65537]),
    "raw_input_contents: one for each of 1 inputs": lambda: made(raw_input_contents=[b"", b""]),
    "raw_input_contents[0]: FP32 of shape [2] has 8 bytes, got 7": lambda: made(raw_input_contents=[bytes(7)]),
    "raw_input_contents[0]: 2 elements of BYTES": lambda: made(datatype="BYTES", raw_input_contents=[bytes(7)]),
    "inputs[0].contents: raw_input_contents has": lambda: made(contents=FP32, raw_input_contents=[bytes(8)]),
    "inputs[0].contents.fp32_contents: a tensor of shape [3] has 3": lambda: made(contents=FP32, shape=[3]),
    "inputs[0].contents.fp32_contents: INT8 has its elements in int_contents": lambda: made(
        contents=FP32, datatype="INT8"
    ),
    "inputs[0].contents.int_contents: elements of INT8 are from -128 to 127": lambda: made(
        contents=pb.InferTensorContents(int_contents=[1, 128]), datatype="INT8"
    ),
    "inputs[0].contents.uint_contents: elements of UINT16 are from 0 to 65535": lambda: made(
        contents=pb.InferTensorContents(uint_contents=[1, 65536]), datatype="UINT16"
    ),
    "inputs[0].contents: FP16 has none": lambda: made(contents=pb.InferTensorContents(), datatype="FP16"),
    "inputs[0].contents: at most 65536 elements": lambda: made(contents=FP32, shape=[262145]),
    "inputs[0].parameters: shared memory": lambda: made(
        parameters={"shared_memory_region": pb.InferParameter(string_param="r")}
    ),
    "outputs[0].parameters.classification: is not supported": lambda: made(
        outputs=[{"name": "o", "parameters": {"classification": pb.InferParameter(int64_param=1)}}]
    ),
    "parameters.timeout: must be microseconds": lambda: with_parameter("timeout", int64_param=-1),
    "parameters.priority: must be a whole number": lambda: with_parameter("priority", string_param="1"),
    "parameters.sequence_id: must be": lambda: with_parameter("sequence_id", bool_param=True),
    "parameters.sequence_start: must be a flag": lambda: with_parameter("sequence_start", int64_param=1),
    "parameters.method: must be the name": lambda: with_parameter("method", int64_param=1),
    "parameters.own: has no value": lambda: with_parameter("own"),
    "key 'slotmesh-x' is reserved": lambda: with_parameter("slotmesh-x", int64_param=1),
}


@pytest.mark.parametrize("words", MISTAKES)
async def test_a_mistake_names_its_field(models: Models, words: str) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await models.stub.ModelInfer(MISTAKES[words]())
    assert told(caught.value) == ("INVALID_ARGUMENT", "BAD_REQUEST", "no")
    assert words in (caught.value.details() or "")


async def test_what_the_method_does_not_take(models: Models) -> None:
    texts = np.asarray([b"\xff"], object)
    cases = [
        ("object contains unknown field y", request("only", {"y": np.ones(2)})),
        ("missing required field", request("only")),
        ("texts[0]: expected str", request("model", {"texts": texts}, method="found")),
        ("scale: expected a tensor of one element", _named({"scale": np.ones(2)})),
        ("got numbers out of its range", _named({"images": np.asarray([1e300])})),
        ("unknown field c", request("model", {"a": np.ones(1), "b": np.ones(1), "c": np.ones(1)}, method="pair")),
        ("byte string 0 of 1 has 9 bytes", _broken_strings()),
        ("booleans has bytes other than 0 and 1", _broken_booleans()),
    ]
    for words, wrong in cases:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await models.stub.ModelInfer(wrong)
        assert told(caught.value) == ("INVALID_ARGUMENT", "BAD_ARGUMENTS", "no"), words
        assert words in (caught.value.details() or "")


async def test_what_there_is_not(models: Models) -> None:
    x = {"x": np.ones(2)}
    cases = [
        (("NOT_FOUND", "ENDPOINT_NOT_FOUND", "no"), request("nowhere", x)),
        (("NOT_FOUND", "BACKEND_NOT_FOUND", "no"), request("model", x, version="3")),
        (("NOT_FOUND", "METHOD_NOT_FOUND", "no"), request("model", x, method="nowhere")),
        (("NOT_FOUND", "METHOD_NOT_FOUND", "no"), request("several", x)),
        (("INVALID_ARGUMENT", "BAD_REQUEST", "yes"), request("model", x, outputs=("nowhere",))),
        (("INVALID_ARGUMENT", "BAD_REQUEST", "no"), request("mixed", x, version="only", sequence_id=1)),
        (("UNKNOWN", "HANDLER_ERROR", "yes"), request("model", method="fails")),
        (("UNIMPLEMENTED", "NOT_IMPLEMENTED", "no"), request("model", {"up_to": np.asarray([2])}, method="count")),
    ]
    for expected, wrong in cases:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await models.stub.ModelInfer(wrong)
        assert told(caught.value) == expected
    with pytest.raises(grpc.aio.AioRpcError, match="complex128 is no tensor"):
        await models.stub.ModelInfer(request("model", method="strange"))


def _named(more: dict[str, Any]) -> pb.ModelInferRequest:
    return request("model", {"images": np.ones(1, np.float32)} | more, method="named")


def _broken_strings() -> pb.ModelInferRequest:
    wrong = request("model", {"x": np.asarray([b""], object)})
    wrong.raw_input_contents[0] = (9).to_bytes(4, "little") + b"short"
    return wrong


def _broken_booleans() -> pb.ModelInferRequest:
    wrong = request("model", {"x": np.asarray([True])})
    wrong.raw_input_contents[0] = b"\x02"
    return wrong
