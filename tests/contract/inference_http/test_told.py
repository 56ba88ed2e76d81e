"""Health, and what is told of servers and models: as Triton's client and KServe's protocol have it."""

from __future__ import annotations

import numpy as np
import pytest

from slotmesh.version import VERSION
from tests.contract.inference_http.bodies import infer
from tests.support.ingresses import ServedMesh

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_health_has_no_body(served: ServedMesh) -> None:
    for path in ("/v2/health/live", "/v2/health/ready"):
        answer = await served.ask("GET", path)
        assert (answer.status, answer.body) == (200, b"")
        assert (await served.ask("HEAD", path)).status == 200


async def test_the_server(served: ServedMesh) -> None:
    answer = await served.ask("GET", "/v2")
    extensions = ["binary_tensor_data", "model_configuration", "sequence", "statistics"]
    assert (answer.status, answer.headers["content-type"]) == (200, "application/json")
    assert answer.json == {"name": "slotmesh", "version": VERSION, "extensions": extensions}


async def test_a_model_and_its_versions(served: ServedMesh) -> None:
    tensor = {"datatype": "FP32", "shape": [-1]}
    expected = {
        "name": "batches",
        "versions": ["batches"],
        "platform": "slotmesh_python",
        "inputs": [{"name": "x", **tensor}],
        "outputs": [{"name": "output", **tensor}],
        "properties": {"method": "infer"},
    }
    for path in ("/v2/models/batches", "/v2/models/batches/versions/batches", "/v2/models/b%61tches"):
        assert (await served.ask("GET", path)).json == expected
    assert (await served.ask("GET", "/v2/models/model")).json["versions"] == ["model-v1", "model-v2"]


async def test_whether_a_model_is_ready(served: ServedMesh) -> None:
    for path in ("/v2/models/model/ready", "/v2/models/model/versions/model-v2/ready"):
        answer = await served.ask("GET", path)
        assert (answer.status, answer.json) == (200, {"name": "model", "ready": True})
    nowhere = await served.ask("GET", "/v2/models/nowhere/ready")
    assert (nowhere.status, nowhere.json["reason"]) == (404, "ENDPOINT_NOT_FOUND")
    other = await served.ask("GET", "/v2/models/model/versions/9/ready")
    assert (other.status, other.json["reason"]) == (404, "BACKEND_NOT_FOUND")


async def test_the_configuration(served: ServedMesh) -> None:
    config = (await served.ask("GET", "/v2/models/batches/config")).json
    assert (config["name"], config["backend"], config["max_batch_size"]) == ("batches", "python", 8)
    assert config["input"] == [{"name": "x", "data_type": "TYPE_FP32", "dims": [-1], "optional": False}]
    assert config["output"] == [{"name": "output", "data_type": "TYPE_FP32", "dims": [-1]}]
    assert config["parameters"] == {"method": {"string_value": "infer"}}
    assert (config["dynamic_batching"], config["model_transaction_policy"]) == ({}, {"decoupled": False})
    single = (await served.ask("GET", "/v2/models/only/config")).json
    assert "dynamic_batching" not in single


async def test_statistics(served: ServedMesh) -> None:
    for _ in range(3):
        await infer(served, "double", {"x": np.ones(2)})
    [figures] = (await served.ask("GET", "/v2/models/double/stats")).json["model_stats"]
    assert (figures["name"], figures["version"], figures["inference_count"]) == ("double", "double", 3)
    assert figures["inference_stats"]["success"]["count"] == 3
    assert figures["inference_stats"]["success"]["ns"] > 0
    assert figures["inference_stats"]["compute_input"] == {"count": 0, "ns": 0}
    every = (await served.ask("GET", "/v2/models/stats")).json["model_stats"]
    assert {"double", "model", "batches"} <= {each["name"] for each in every}
    one = (await served.ask("GET", "/v2/models/both/versions/model-v2/stats")).json["model_stats"]
    assert [each["version"] for each in one] == ["model-v2"]


async def test_the_index(served: ServedMesh) -> None:
    for body in (b"", b"{}", b'{"ready": true}'):
        answer = await served.ask("POST", "/v2/repository/index", body)
        found = {(each["name"], each["version"], each["state"]) for each in answer.json}
        assert {("model", "model-v1", "READY"), ("model", "model-v2", "READY"), ("only", "only", "READY")} <= found
    for wrong in (b"[]", b'{"ready": 1}', b"{", b"[" * 4_000):
        answer = await served.ask("POST", "/v2/repository/index", wrong)
        assert (answer.status, answer.json["error"]) == (
            400,
            "the body must be a JSON object, with the flag ready at most",
        )
    large = await served.ask("POST", "/v2/repository/index", b'{"ready": true, "x": [%b1]}' % (b"1," * 2_040))
    assert (large.status, large.json["reason"], large.json["executed"]) == (413, "PAYLOAD_TOO_LARGE", "no")
    assert large.json["error"] == "the body has at most 4,096 bytes: a JSON object with the flag ready"
    assert served.ingress.bodies.held == 0
