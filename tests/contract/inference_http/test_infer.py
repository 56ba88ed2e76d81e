"""Inferences as JSON and in binary, of every datatype; what parameters and headers mean; versions."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from slotmesh.calls.method_outlines import BF16, FIXED
from tests.contract.inference.handlers import Model
from tests.contract.inference_http.bodies import LENGTH, arrays, infer, said_by
from tests.support.ingresses import ServedMesh

pytestmark = pytest.mark.asyncio(loop_scope="module")

ALL_BINARY: dict[str, Any] = {"parameters": {"binary_data_output": True}}
TEXTS = np.asarray([b"one", "zw\u00f6lf".encode(), b"", b"a,b"], object)


@pytest.mark.parametrize("binary_out", [False, True])
@pytest.mark.parametrize("binary_in", [False, True])
@pytest.mark.parametrize("datatype", [name for name, each in FIXED.items() if each.typed])
async def test_each_datatype_comes_back(served: ServedMesh, datatype: str, binary_in: bool, binary_out: bool) -> None:
    x = np.asarray([[0, 1, 1], [1, 0, 1]], FIXED[datatype].dtype)
    answer = await infer(served, "model", {"x": x}, binary=binary_in, id="7", **ALL_BINARY if binary_out else {})
    said = said_by(answer)
    assert (said["model_name"], said["model_version"], said["id"]) == ("model", "model-v1", "7")
    [output] = said["outputs"]
    assert (output["datatype"], output["shape"]) == (datatype, [2, 3])
    assert ("data" in output, LENGTH in answer.headers) == (not binary_out, binary_out)
    assert answer.headers["content-type"] == ("application/octet-stream" if binary_out else "application/json")
    back = arrays(answer)["output"]
    assert back.dtype == x.dtype
    assert (back == x).all()


@pytest.mark.parametrize("binary_out", [False, True])
@pytest.mark.parametrize("binary_in", [False, True])
async def test_byte_strings_come_back(served: ServedMesh, binary_in: bool, binary_out: bool) -> None:
    answer = await infer(served, "model", {"x": TEXTS}, binary=binary_in, **ALL_BINARY if binary_out else {})
    assert arrays(answer)["output"].tolist() == TEXTS.tolist()


async def test_byte_strings_that_are_no_text_need_binary(served: ServedMesh) -> None:
    wild = np.asarray([b"\xff\x00"], object)
    answer = await infer(served, "model", {"x": wild}, binary=True, **ALL_BINARY)
    assert arrays(answer)["output"].tolist() == wild.tolist()
    refused = await infer(served, "model", {"x": wild}, binary=True)
    assert (refused.status, refused.json["executed"]) == (400, "yes")
    assert "has bytes that are no text" in refused.json["error"]


async def test_halves_are_in_binary_both_ways(served: ServedMesh) -> None:
    x = np.asarray([0.5, -2.0, 65504], np.float16)
    answer = await infer(served, "model", {"x": x}, binary=True)
    assert "data" not in said_by(answer)["outputs"][0]
    assert arrays(answer)["output"].tolist() == x.tolist()
    refused = await infer(served, "model", {"x": x})
    assert (refused.status, refused.json["error"]) == (400, "inputs[0].data: FP16 is sent in binary only")


async def test_brain_floats_are_widened(served: ServedMesh) -> None:
    wide = np.asarray([1.0, -2.5, 3e38], "<f4")
    brain = (wide.view("<u4") >> 16).astype("<u2")
    body = b'{"inputs":[{"name":"x","datatype":"BF16","shape":[3],"parameters":{"binary_data_size":6}}]}'
    answer = await served.ask("POST", "/v2/models/model/infer", body + brain.tobytes(), {LENGTH: str(len(body))})
    expected = (brain.astype("<u4") << 16).view("<f4")
    assert said_by(answer)["outputs"][0]["datatype"] == "FP32"
    assert arrays(answer)["output"].tolist() == expected.tolist()
    assert FIXED[BF16].size == 2


async def test_mixed_inputs_and_outputs_that_are_wanted(served: ServedMesh) -> None:
    pair = {"a": np.ones(2, np.float32), "b": np.asarray([5, 6])}
    outputs = [{"name": "output1", "parameters": {"binary_data": True}}, {"name": "output0"}]
    answer = await infer(served, "model", pair, binary=["b"], outputs=outputs, parameters={"method": "pair"})
    said = said_by(answer)["outputs"]
    assert [(each["name"], "data" in each) for each in said] == [("output1", False), ("output0", True)]
    assert arrays(answer)["output1"].tolist() == [6, 7]
    one = await infer(served, "model", pair, outputs=[{"name": "output0"}], parameters={"method": "pair"})
    assert list(arrays(one)) == ["output0"]
    none = await infer(served, "model", {"x": [1]}, outputs=[{"name": "nowhere"}])
    assert (none.status, none.json["executed"]) == (400, "yes")
    assert none.json["error"] == "outputs[0].name: there is no output 'nowhere'; the method returned output"


async def test_no_numbers_are_null_in_json_and_themselves_in_binary(served: ServedMesh) -> None:
    x = np.asarray([np.nan, np.inf, 1], np.float32)
    assert said_by(await infer(served, "model", {"x": x}, binary=True))["outputs"][0]["data"] == [None, None, 1.0]
    back = arrays(await infer(served, "model", {"x": x}, binary=True, **ALL_BINARY))["output"]
    assert back.tobytes() == x.tobytes()


async def test_shapes_of_all_kinds(served: ServedMesh) -> None:
    for shape in [(), (0,), (3, 0), (1,), (2, 3, 4)]:
        x = np.zeros(shape, np.float32)
        for binary in (True, False):
            assert arrays(await infer(served, "model", {"x": x}, binary=binary))["output"].shape == shape
    nested = b'{"inputs":[{"name":"x","datatype":"INT64","shape":[2,2],"data":[[1,2],[3,4]]}]}'
    answer = await served.ask("POST", "/v2/models/model/infer", nested)
    assert arrays(answer)["output"].tolist() == [[1, 2], [3, 4]]


async def test_methods_are_chosen_as_over_grpc(served: ServedMesh) -> None:
    x = {"x": np.asarray([1, 2], np.float32)}
    assert arrays(await infer(served, "only", x))["output"].tolist() == [3]
    assert arrays(await infer(served, "double", x))["output"].tolist() == [2, 4]
    unclear = await infer(served, "several", x)
    assert (unclear.status, unclear.json["reason"]) == (404, "METHOD_NOT_FOUND")
    assert "several has no method infer, and several others: name one of one, two" in unclear.json["error"]
    assert arrays(await infer(served, "several", x, parameters={"method": "two"}))["output"].tolist() == [1, 2]
    yields = await infer(served, "model", {"up_to": [2]}, parameters={"method": "count"})
    assert (yields.status, yields.json["reason"], yields.json["executed"]) == (501, "NOT_IMPLEMENTED", "no")
    assert "count yields" in yields.json["error"]
    assert said_by(await infer(served, "model", parameters={"method": "nothing"}))["outputs"] == []


async def test_requests_that_meet_are_one_batch(served: ServedMesh) -> None:
    [handler] = served.mesh.instances("batches")
    handler.sizes.clear()
    rows = [infer(served, "batches", {"x": np.full((2, 3), n, np.float32)}, binary=True) for n in range(4)]
    answers = await asyncio.gather(*rows)
    assert [arrays(it)["output"].tolist() for it in answers] == [[[2.0 * n] * 3] * 2 for n in range(4)]
    assert max(handler.sizes) > 2


CONTEXT: dict[str, Any] = {
    "sequence_id": 7,
    "sequence_start": True,
    "priority": 2,
    "timeout": 10_000_000,
    "own": "x",
    "binary_data_output": False,
}


async def test_parameters_mean_what_they_mean_over_grpc(served: ServedMesh) -> None:
    seen = await infer(served, "model", parameters={"method": "context", **CONTEXT})
    expected = [b"own=x", b"sequence_id=7", b"sequence_start=true", b"7"]
    assert arrays(seen)["output"].tolist() == expected
    headers = {"x-slotmesh-ordering-key": "k", "x-slotmesh-meta-more": "y", "x-slotmesh-timeout": "10s"}
    seen = await infer(served, "model", parameters={"method": "context", "own": 1}, headers=headers)
    assert arrays(seen)["output"].tolist() == [b"more=y", b"own=1", b"k"]


@pytest.mark.parametrize(
    ("headers", "parameters", "words"),
    [
        ({"x-slotmesh-ordering-key": "k"}, {"sequence_id": 1}, "X-Slotmesh-Ordering-Key and the parameter sequence_id"),
        ({"x-slotmesh-relative-slo-ms": "5"}, {"priority": 1}, "an SLO and the parameter priority"),
        ({"x-slotmesh-meta-own": "y"}, {"own": "x"}, "X-Slotmesh-Meta-Own and the parameter own"),
    ],
)
async def test_what_both_say_contradicts_itself(
    served: ServedMesh, headers: dict[str, str], parameters: dict[str, Any], words: str
) -> None:
    answer = await infer(served, "model", {"x": [1]}, headers=headers, parameters=parameters)
    assert (answer.status, answer.json["reason"], answer.json["executed"]) == (400, "BAD_REQUEST", "no")
    assert answer.json["error"] == f"{words} are both given: give one of them"


async def test_a_version_is_a_backend(served: ServedMesh) -> None:
    [_, second] = [served.mesh.instances(name)[0] for name in ("model-v1", "model-v2")]
    assert isinstance(second, Model)
    before = len(second.shapes)
    for binary in (False, True):
        answer = await infer(served, "model", {"x": TEXTS}, version="model-v2", binary=binary, id="i")
        said = said_by(answer)
        assert (said["model_version"], said["id"]) == ("model-v2", "i")
        assert arrays(answer)["output"].tolist() == TEXTS.tolist()
    assert len(second.shapes) == before + 2
    assert said_by(await infer(served, "model", {"x": [1]}))["model_version"] == "model-v1"
    seen = await infer(served, "model", version="model-v2", parameters={"method": "context", "own": 2.5, "flag": True})
    assert arrays(seen)["output"].tolist() == [b"flag=true", b"own=2.5", b""]
    keyed = await infer(served, "only", {"x": [1]}, version="only", parameters={"sequence_id": 3})
    assert keyed.status == 200


async def test_each_answer_names_the_backend_that_gave_it(served: ServedMesh) -> None:
    handlers: list[Any] = [served.mesh.instances(name)[0] for name in ("model-v1", "model-v2")]
    before = [len(each.shapes) for each in handlers]
    keys = [{"x-slotmesh-shard-key": str(n), "x-slotmesh-ordering-key": str(n % 5)} for n in range(40)]
    sent = [infer(served, "both", {"x": np.zeros(n)}, headers=key) for n, key in enumerate(keys)]
    answers = await asyncio.gather(*sent)
    for name, handler, known in zip(("model-v1", "model-v2"), handlers, before, strict=True):
        mine = [said_by(it)["outputs"][0]["shape"][0] for it in answers if said_by(it)["model_version"] == name]
        assert mine
        assert sorted(mine) == sorted(shape[0] for shape in handler.shapes[known:])
