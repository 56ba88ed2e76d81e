"""A program with Triton's client for HTTP, unchanged: `python triton_http_program.py ADDRESS`; prints JSON.

It runs in an environment of its own, which has neither slotmesh nor pytest.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import tritonclient.http as triton
import tritonclient.http.aio as triton_aio
from tritonclient.utils import InferenceServerException


def given(name: str, array: Any, datatype: str, *, binary: bool = True) -> Any:
    made = triton.InferInput(name, list(array.shape), datatype)
    made.set_data_from_numpy(array, binary_data=binary)
    return made


def tensors(client: Any) -> dict[str, Any]:
    """Of each datatype: in binary, as JSON, and one way each."""
    found: dict[str, Any] = {}
    dtypes = {"BOOL": "?", "FP64": "f8", "FP32": "f4", "FP16": "f2"}
    dtypes |= {
        f"{kind}INT{8 * size}": f"{letter}{size}" for kind, letter in (("", "i"), ("U", "u")) for size in (1, 2, 4, 8)
    }
    for datatype, dtype in dtypes.items():
        array = np.asarray([[0, 1, 1], [1, 0, 1]], dtype)
        same, told = [], {}
        for binary_in, binary_out in ((True, True), (True, False), (False, True), (False, False)):
            if datatype == "FP16" and not binary_in:
                continue
            output = triton.InferRequestedOutput("output", binary_data=binary_out)
            inputs = [given("x", array, datatype, binary=binary_in)]
            result = client.infer("model", inputs, outputs=[output], request_id=datatype)
            back, told = result.as_numpy("output"), result.get_response()
            same.append(back.dtype == array.dtype and back.shape == (2, 3) and bool((back == array).all()))
        found[datatype] = [told["id"], told["model_name"], told["model_version"], all(same)]
    return found


def others(client: Any) -> dict[str, Any]:
    texts = np.asarray([b"one", "zwölf".encode(), b"", b"\x00\xff"], object)
    back = client.infer("model", [given("x", texts, "BYTES")]).as_numpy("output")
    plain = given("x", texts[:3], "BYTES", binary=False)
    said = client.infer("model", [plain], outputs=[triton.InferRequestedOutput("output", binary_data=False)])
    brain = np.asarray([1.5, -2.0], ml_dtypes.bfloat16)
    wide = client.infer("model", [given("x", brain, "BF16")])
    empty = client.infer("model", [given("x", np.zeros((0, 3), np.float32), "FP32")])
    return {
        "bytes": [each.decode("latin-1") for each in back.tolist()],
        "texts": said.as_numpy("output").tolist(),
        "brain": [wide.get_output("output")["datatype"], wide.as_numpy("output").tolist()],
        "empty": list(empty.as_numpy("output").shape),
        "batch": client.infer("batches", [given("x", np.ones((3, 2), np.float32), "FP32")]).as_numpy("output").tolist(),
        "version": client.infer("model", [given("x", brain, "BF16")], model_version="model").get_response()[
            "model_version"
        ],
    }


def compressed(client: Any) -> list[bool]:
    x = np.arange(100_000, dtype=np.int64)
    found = []
    for request in (None, "gzip", "deflate"):
        for response in (None, "gzip", "deflate"):
            result = client.infer(
                "model",
                [given("x", x, "INT64")],
                request_compression_algorithm=request,
                response_compression_algorithm=response,
            )
            found.append(bool((result.as_numpy("output") == x).all()))
    return found


def asynchronous(client: Any) -> list[int]:
    asked = [client.async_infer("model", [given("x", np.asarray([index]), "INT64")]) for index in range(20)]
    return [int(each.get_result().as_numpy("output")[0]) for each in asked]


async def by_asyncio(address: str) -> list[Any]:
    async with triton_aio.InferenceServerClient(address) as client:
        inputs = [[given("x", np.asarray([index]), "INT64")] for index in range(20)]
        results = await asyncio.gather(*(client.infer("model", each) for each in inputs))
        return [await client.is_server_ready(), [int(each.as_numpy("output")[0]) for each in results]]


def of_calls(client: Any) -> list[str]:
    """What parameters of a sequence come to."""
    result = client.infer(
        "model",
        [],
        sequence_id=7,
        sequence_start=True,
        priority=1,
        timeout=5_000_000,
        parameters={"method": "context", "own": "x"},
    )
    return [each.decode() for each in result.as_numpy("output").tolist()]


def told(client: Any) -> dict[str, Any]:
    metadata = client.get_model_metadata("batches")
    config = client.get_model_config("batches")
    statistics = client.get_inference_statistics("model")["model_stats"]
    every = client.get_inference_statistics()["model_stats"]
    index = client.get_model_repository_index()
    return {
        "server": [client.is_server_live(), client.is_server_ready(), client.get_server_metadata()["name"]],
        "ready": [
            client.is_model_ready("model"),
            client.is_model_ready("model", "model"),
            client.is_model_ready("nowhere"),
        ],
        "metadata": [metadata["inputs"], metadata["outputs"], metadata["versions"]],
        "config": [config["backend"], config["max_batch_size"], config["input"][0]["data_type"]],
        "statistics": [[each["name"], each["version"], each["inference_count"] > 0] for each in statistics],
        "every": sorted(each["name"] for each in every),
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
        lambda: client.infer("model", x, outputs=[triton.InferRequestedOutput("output", class_count=2)]),
        lambda: client.infer("model", [given("up_to", np.asarray([2]), "INT64")], parameters={"method": "count"}),
        lambda: client.register_system_shared_memory("region", "/key", 8),
        lambda: client.load_model("model"),
        client.get_log_settings,
        lambda: client.get_model_metadata("nowhere"),
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
    client: Any = triton.InferenceServerClient(address, concurrency=8)
    print(
        json.dumps(
            {
                "tensors": tensors(client),
                "others": others(client),
                "compressed": compressed(client),
                "async": asynchronous(client),
                "asyncio": asyncio.run(by_asyncio(address)),
                "calls": of_calls(client),
                "told": told(client),
                "refusals": refusals(client),
            }
        )
    )
    client.close()


if __name__ == "__main__":
    main()
