"""ModelInfer over real gRPC: each datatype, each form of a method, and what comes back."""

from __future__ import annotations

import numpy as np
import pytest

from slotmesh.calls.method_outlines import FIXED
from tests.contract.inference.conftest import Models
from tests.contract.inference.inference_client import TYPED, arrays, raw_strings, request

pytestmark = pytest.mark.asyncio(loop_scope="module")

NUMBERS = [0, 1, 2, 3, 4, 100]


@pytest.mark.parametrize("typed", [False, True], ids=["raw", "typed"])
async def test_each_datatype_comes_back_as_it_was(models: Models, typed: bool) -> None:
    for name, datatype in FIXED.items():
        if name == "BF16" or (typed and name not in TYPED):
            continue
        array = np.asarray(NUMBERS, datatype.dtype).reshape(2, 3)
        answer = await models.stub.ModelInfer(request("model", {"x": array}, typed=typed, request_id=name))
        (output,) = answer.outputs
        assert (answer.id, answer.model_name, answer.model_version) == (name, "model", "model-v1")
        assert (output.name, output.datatype, list(output.shape)) == ("output", name, [2, 3])
        assert bool(answer.raw_output_contents) is not typed
        assert arrays(answer)["output"].tobytes() == array.tobytes()

    texts = np.asarray([[b"", b"a"], ["ü".encode(), b"\xff\x00"]], object)
    answer = await models.stub.ModelInfer(request("model", {"x": texts}, typed=typed))
    assert answer.outputs[0].datatype == "BYTES"
    assert arrays(answer)["output"].tolist() == texts.tolist()


async def test_bf16_is_widened(models: Models) -> None:
    values = np.asarray([1.5, -2.0, 0.0, 3.0e38], np.float32)
    made = request("model")
    made.inputs.add(name="x", datatype="BF16", shape=[4])
    made.raw_input_contents.append(values.view(np.uint32).__rshift__(16).astype(np.uint16).tobytes())
    answer = await models.stub.ModelInfer(made)
    back = arrays(answer)["output"]
    assert answer.outputs[0].datatype == "FP32"
    assert back[:3].tolist() == [1.5, -2.0, 0.0]
    assert back.view(np.uint32)[3] == values.view(np.uint32)[3] & 0xFFFF0000


async def test_shapes_without_elements_and_without_dimensions(models: Models) -> None:
    for array in (np.zeros((0, 3), np.float32), np.float64(2.5), np.zeros((2, 0, 3), np.int8)):
        answer = await models.stub.ModelInfer(request("model", {"x": array}))
        assert arrays(answer)["output"].tolist() == np.asarray(array).tolist()
        assert tuple(answer.outputs[0].shape) == np.shape(array)


async def test_methods_take_tensors_by_parameter_or_all_in_one(models: Models) -> None:
    images = np.ones((1, 2), np.float32)
    infer = models.stub.ModelInfer
    assert arrays(await infer(request("model", {"images": images}, method="named")))["output"].tolist() == [[2.0, 2.0]]
    scaled = {"scale": np.asarray([3.0]), "images": images.astype(np.float64)}
    answer = await infer(request("model", scaled, method="named"))
    assert (answer.outputs[0].datatype, arrays(answer)["output"].tolist()) == ("FP32", [[3.0, 3.0]])

    pair = {"a": np.asarray([1.0], np.float32), "b": np.asarray([2])}
    answer = arrays(await infer(request("model", pair, method="pair")))
    assert {name: each.tolist() for name, each in answer.items()} == {"output0": [2.0], "output1": [3]}

    some = {"p": np.arange(3), "q": np.asarray([b"x"], object)}
    answer = arrays(await infer(request("model", some, method="everything")))
    assert {name: each.tolist() for name, each in answer.items()} == {"p_back": [0, 1, 2], "q_back": [b"x"]}

    answer = arrays(await infer(request("model", {"texts": np.asarray([b"a", b"b"], object)}, method="found")))
    assert {name: each.tolist() for name, each in answer.items()} == {"total": [2.0], "names": [b"A", b"B"]}

    assert not (await infer(request("model", method="nothing"))).outputs
    assert arrays(await infer(request("only", {"x": np.arange(4)})))["output"].tolist() == [6]
    assert arrays(await infer(request("double", {"x": np.arange(2)})))["output"].tolist() == [0, 2]


async def test_outputs_that_are_wanted(models: Models) -> None:
    some = {"p": np.arange(3), "q": np.arange(2)}
    answer = await models.stub.ModelInfer(request("model", some, method="everything", outputs=("q_back",)))
    assert [each.name for each in answer.outputs] == ["q_back"]


async def test_halves_are_answered_raw(models: Models) -> None:
    """Typed contents cannot say them."""
    made = request("model", {"up_to": np.asarray([1])}, typed=True)
    assert made.inputs[0].contents.int64_contents == [1]
    answer = await models.stub.ModelInfer(request("model", method="half"))
    assert arrays(answer)["output"].tolist() == [0.5, -2.0]


async def test_what_parameters_mean_to_the_handler(models: Models) -> None:
    answer = await models.stub.ModelInfer(
        request(
            "model",
            method="context",
            sequence_id=7,
            sequence_start=True,
            sequence_end=False,
            own="x",
            priority=1,
            timeout=5_000_000,
        )
    )
    told = arrays(answer)["output"].tolist()
    assert told == [b"own=x", b"sequence_end=false", b"sequence_id=7", b"sequence_start=true", b"7"]


async def test_versions(models: Models) -> None:
    for version in ("model-v1", "model-v2"):
        for _ in range(3):
            answer = await models.stub.ModelInfer(request("model", {"x": np.arange(2)}, version=version))
            assert answer.model_version == version
    assert (await models.stub.ModelInfer(request("model", {"x": np.arange(2)}))).model_version == "model-v1"


async def test_raw_strings_are_passed_on_as_they_are(models: Models) -> None:
    made = request("model")
    made.inputs.add(name="x", datatype="BYTES", shape=[2])
    made.raw_input_contents.append(raw_strings([b"one", b""]))
    answer = await models.stub.ModelInfer(made)
    assert list(answer.raw_output_contents) == list(made.raw_input_contents)
