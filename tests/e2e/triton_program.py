"""A program with Triton's client for gRPC, unchanged: `python triton_program.py ADDRESS`; prints what it found as JSON.

It runs in an environment of its own, which has neither slotmesh nor pytest.
"""

from __future__ import annotations

import json
import queue
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import tritonclient.grpc as triton
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException

WAIT_S = 30.0


def given(name: str, array: Any, datatype: str) -> Any:
    made = triton.InferInput(name, list(array.shape), datatype)
    made.set_data_from_numpy(array)
    return made


def raw_tensors(client: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for datatype, dtype in (("FP32", "f4"), ("FP16", "f2"), ("INT8", "i1"), ("UINT64", "u8"), ("BOOL", "?")):
        array = np.asarray([[0, 1, 1], [1, 0, 1]], dtype)
        result = client.infer("model", [given("x", array, datatype)], request_id=datatype)
        back = result.as_numpy("output")
        same = back.dtype == array.dtype and bool((back == array).all())
        found[datatype] = [result.get_response().id, result.get_response().model_version, same]
    return found


def byte_strings(client: Any) -> list[str]:
    texts = np.asarray([b"one", "zwölf".encode(), b""], object)
    back = client.infer("model", [given("x", texts, "BYTES")]).as_numpy("output")
    return [each.decode() for each in back.tolist()]


def typed_tensors(address: str) -> list[float]:
    """The client says everything raw; its generated messages say it one by one."""
    import grpc

    with grpc.insecure_channel(address) as channel:
        request = service_pb2.ModelInferRequest(model_name="model")
        tensor = request.inputs.add(name="x", datatype="FP32", shape=[3])
        tensor.contents.fp32_contents.extend([1.0, 2.5, -3.0])
        answer = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(request)
        return list(answer.outputs[0].contents.fp32_contents)


def asynchronous(client: Any) -> list[int]:
    answers: queue.Queue[Any] = queue.Queue()
    for index in range(20):
        client.async_infer(
            "model", [given("x", np.asarray([index]), "INT64")], lambda result, error: answers.put((result, error))
        )
    found = [answers.get(timeout=WAIT_S) for _ in range(20)]
    assert not any(error for _, error in found)
    return sorted(int(result.as_numpy("output")[0]) for result, _ in found)


def streamed(client: Any) -> dict[str, Any]:
    answers: queue.Queue[Any] = queue.Queue()
    client.start_stream(partial(lambda into, result, error: into.put((result, error)), answers))
    for index in range(10):
        x = given("x", np.asarray([index]), "INT64")
        client.async_stream_infer(
            "model", [x], request_id=str(index), sequence_id=1, sequence_start=index == 0, sequence_end=index == 9
        )
    plain = [answers.get(timeout=WAIT_S) for _ in range(10)]
    count = [given("up_to", np.asarray([3]), "INT64")]
    client.async_stream_infer(
        "model", count, request_id="c", enable_empty_final_response=True, parameters={"method": "count"}
    )
    yielded = [answers.get(timeout=WAIT_S) for _ in range(4)]
    client.async_stream_infer("model", [], parameters={"method": "fails"})
    _, error = answers.get(timeout=WAIT_S)
    client.stop_stream()
    return {
        "plain": [[result.get_response().id, int(result.as_numpy("output")[0])] for result, _ in plain],
        "yielded": [int(result.as_numpy("output")[0]) for result, _ in yielded[:3]],
        "final": [result.get_response().parameters["triton_final_response"].bool_param for result, _ in yielded],
        "error": str(error),
    }


def told(client: Any) -> dict[str, Any]:
    as_json = {"as_json": True}
    metadata = client.get_model_metadata("batches", **as_json)
    config = client.get_model_config("batches", **as_json)["config"]
    statistics = client.get_inference_statistics("model", **as_json)["model_stats"]
    index = client.get_model_repository_index(**as_json)["models"]
    return {
        "server": [client.is_server_live(), client.is_server_ready(), client.get_server_metadata().name],
        "ready": [client.is_model_ready("model"), client.is_model_ready("model", "model")],
        "metadata": [metadata["inputs"], metadata["outputs"], metadata["versions"]],
        "config": [config["backend"], config["max_batch_size"], config["input"]],
        "statistics": [[each["name"], each["version"], int(each["inference_count"]) > 0] for each in statistics],
        "index": [[each["name"], each["version"], each["state"]] for each in index],
    }


def refusals(client: Any) -> list[list[str]]:
    x = [given("x", np.ones(2, np.float32), "FP32")]
    attempts: tuple[Callable[[], Any], ...] = (
        lambda: client.infer("nowhere", x),
        lambda: client.infer("model", x, model_version="9"),
        lambda: client.infer("batches", [given("y", np.ones((1, 2), np.float32), "FP32")]),
        lambda: client.infer("model", x, parameters={"method": "_private"}),
        lambda: client.infer("model", [], parameters={"method": "fails"}),
        lambda: client.infer("model", x, outputs=[triton.InferRequestedOutput("nowhere")]),
        lambda: client.register_system_shared_memory("region", "/key", 8),
    )
    found = []
    for attempt in attempts:
        try:
            attempt()
        except InferenceServerException as error:
            found.append([str(error.status()), str(error.message())])
        else:
            found.append(["OK", ""])
    return found


def main() -> None:
    address = sys.argv[1]
    client: Any = triton.InferenceServerClient(address)
    print(
        json.dumps(
            {
                "raw": raw_tensors(client),
                "bytes": byte_strings(client),
                "typed": typed_tensors(address),
                "async": asynchronous(client),
                "stream": streamed(client),
                "told": told(client),
                "refusals": refusals(client),
                "batch": client.infer("batches", [given("x", np.ones((3, 2), np.float32), "FP32")])
                .as_numpy("output")
                .tolist(),
            }
        )
    )
    client.close()


if __name__ == "__main__":
    main()
