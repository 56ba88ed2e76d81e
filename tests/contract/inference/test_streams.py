"""ModelStreamInfer: any number of requests, each answered; failures do not end the stream."""

from __future__ import annotations

from typing import Any

import grpc
import numpy as np
import pytest

from tests.contract.inference.conftest import Models
from tests.contract.inference.inference_client import arrays, request

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def streamed(models: Models, *requests: Any) -> list[Any]:
    call = models.stub.ModelStreamInfer(iter(requests), timeout=30)
    return [answer async for answer in call]


async def test_answers_come_in_the_order_of_requests(models: Models) -> None:
    requests = [request("model", {"x": np.asarray([index])}, request_id=str(index)) for index in range(200)]
    answers = await streamed(models, *requests)
    assert [answer.infer_response.id for answer in answers] == [str(index) for index in range(200)]
    assert [arrays(answer.infer_response)["output"].item() for answer in answers] == list(range(200))


async def test_a_failure_is_an_answer(models: Models) -> None:
    answers = await streamed(
        models,
        request("model", method="fails", request_id="a"),
        request("nowhere", request_id="b"),
        request("model", {"x": np.ones(1)}, request_id="c", timeout=-1),
        request("model", {"x": np.ones(1)}, request_id="d"),
    )
    assert [answer.infer_response.id for answer in answers] == ["a", "b", "c", "d"]
    told = [answer.error_message.partition(":")[0] for answer in answers]
    assert told == ["UNKNOWN", "NOT_FOUND", "INVALID_ARGUMENT", ""]


async def test_each_value_that_a_method_yields_is_an_answer(models: Models) -> None:
    answers = await streamed(models, request("model", {"up_to": np.asarray([3])}, method="count", request_id="r"))
    assert [arrays(answer.infer_response)["output"].item() for answer in answers] == [0, 1, 2]
    assert {(each.infer_response.id, each.infer_response.model_version) for each in answers} == {("r", "model-v1")}

    failing = await streamed(models, request("model", {"up_to": np.asarray([6])}, method="count", request_id="r"))
    assert [bool(answer.error_message) for answer in failing] == [False] * 6 + [True]


async def test_the_last_answer_says_so_where_that_was_asked_for(models: Models) -> None:
    asked: dict[str, Any] = {"triton_enable_empty_final_response": True}
    answers = await streamed(
        models,
        request("model", {"up_to": np.asarray([2])}, method="count", **asked),
        request("model", {"x": np.ones(1)}, **asked),
    )
    told = [
        (len(each.infer_response.outputs), each.infer_response.parameters["triton_final_response"].bool_param)
        for each in answers
    ]
    assert sorted(told) == sorted([(1, False), (1, False), (0, True), (1, True)])


async def test_calls_of_a_sequence_run_in_order(models: Models) -> None:
    (handler,) = models.mesh.instances("model-v1")
    handler.seen.clear()
    answers = await streamed(
        models, *(request("model", method="context", sequence_id="s", at=index) for index in range(50))
    )
    assert not any(answer.error_message for answer in answers)
    assert [seen["at"] for seen in handler.seen] == [str(index) for index in range(50)]


async def test_bytes_that_are_no_request_end_the_stream(models: Models) -> None:
    from slotmesh.runtime.channels import open_channel

    async with open_channel(models.address) as channel:
        method: Any = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
        call = method(iter([b"\xff\xff"]))
        with pytest.raises(grpc.aio.AioRpcError, match="malformed protobuf"):
            await call.read()
