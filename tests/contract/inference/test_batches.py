"""Inferences of batch methods: many requests become one block of rows, and each gets its own rows back."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import numpy as np
import pytest

from tests.contract.inference.conftest import Models
from tests.contract.inference.handlers import Batches
from tests.contract.inference.inference_client import arrays, request, told

pytestmark = pytest.mark.asyncio(loop_scope="module")


def handler(models: Models) -> Batches:
    (found,) = models.mesh.instances("batches")
    assert isinstance(found, Batches)
    found.sizes.clear()
    return found


async def inferred(models: Models, *requests: Any) -> list[Any]:
    return await asyncio.gather(*map(models.stub.ModelInfer, requests), return_exceptions=True)


async def test_requests_of_one_shape_are_one_array(models: Models) -> None:
    batches = handler(models)
    blocks = [np.full((2, 3), index, np.float32) for index in range(8)]
    answers = await inferred(models, *(request("batches", {"x": block}) for block in blocks))
    for block, answer in zip(blocks, answers, strict=True):
        assert answer.outputs[0].datatype == "FP32"
        assert arrays(answer)["output"].tolist() == (2 * block).tolist()
    assert sum(batches.sizes) == 16
    assert len(batches.sizes) < 8, "requests must meet in batches"


async def test_numbers_of_rows_differ_and_columns_are_concatenated(models: Models) -> None:
    handler(models)
    sizes = [1, 3, 2, 0, 1]
    blocks = [np.full((size, 3), size, np.float32) for size in sizes]
    answers = await inferred(models, *(request("batches", {"x": block}) for block in blocks))
    for block, answer in zip(blocks, answers, strict=True):
        assert arrays(answer)["output"].tolist() == (2 * block).tolist()
        assert list(answer.outputs[0].shape) == list(block.shape)


async def test_rows_of_different_shapes_are_not_put_together(models: Models) -> None:
    handler(models)
    blocks = [np.ones((2, width), np.float32) for width in (3, 4, 3, 4)]
    answers = await inferred(models, *(request("batches", {"x": block}) for block in blocks))
    assert [arrays(answer)["output"].shape for answer in answers] == [(2, 3), (2, 4), (2, 3), (2, 4)]


async def test_lists_get_an_entry_a_row(models: Models) -> None:
    batches = handler(models)
    requests = [
        request(
            "batches",
            {
                "texts": np.asarray([b"a", b"b"][:size], object),
                "weights": np.arange(size, dtype=np.float32),
            },
            method="labels",
        )
        for size in (2, 1, 2)
    ]
    answers = await inferred(models, *requests)
    assert [arrays(answer)["output"].tolist() for answer in answers] == [[b"a:0", b"b:1"], [b"a:0"], [b"a:0", b"b:1"]]
    assert sum(batches.sizes) == 5


async def test_outputs_by_name_are_split_each(models: Models) -> None:
    blocks = [np.full((size, 2), 1.5) for size in (1, 2)]
    answers = await inferred(models, *(request("batches", {"x": block}, method="several") for block in blocks))
    for block, answer in zip(blocks, answers, strict=True):
        outputs = arrays(answer)
        assert outputs["sum"].tolist() == [3.0] * len(block)
        assert outputs["names"].tolist() == [b"row2"] * len(block)


async def test_a_row_that_fails_is_the_failure_of_its_request_alone(models: Models) -> None:
    values = ([1.0], [2.0, -1.0], [3.0])
    answers = await inferred(models, *(request("batches", {"x": np.asarray(each)}, method="picky") for each in values))
    assert [arrays(answers[index])["output"].tolist() for index in (0, 2)] == [[10.0], [30.0]]
    assert isinstance(answers[1], grpc.aio.AioRpcError)
    assert told(answers[1]) == ("UNKNOWN", "HANDLER_ERROR", "yes")


async def test_what_is_wrong_with_rows(models: Models) -> None:
    texts = np.asarray([b"a", b"b"], object)
    cases = {
        "same number of rows": request("batches", {"texts": texts, "weights": np.ones(1)}, method="labels"),
        "has a first axis": request("batches", {"x": np.float32(1)}),
        "unknown field y": request("batches", {"y": np.ones((1, 2), np.float32)}),
        "got ndarray of object": request("batches", {"x": np.asarray([[b"text"]], object)}),
    }
    answers = await inferred(models, *cases.values())
    for words, error in zip(cases, answers, strict=True):
        assert isinstance(error, grpc.aio.AioRpcError), words
        assert told(error) == ("INVALID_ARGUMENT", "BAD_ARGUMENTS", "no")
        assert words.lower() in (error.details() or "").lower()
    (short,) = await inferred(models, request("batches", {"x": np.ones((3, 1))}, method="short"))
    assert told(short) == ("INTERNAL", "BATCH_SIZE_MISMATCH", "yes")
    assert "given 3" in short.details()
