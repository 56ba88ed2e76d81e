"""Triton's own client for HTTP, unchanged, and curl, against a real mesh behind the process of an ingress."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, Final

import pytest

from tests.e2e.test_triton_client import MESH, PORTS, PYTHON, run_program
from tests.support.mesh import mesh_run
from tests.support.shell import program

pytestmark = [pytest.mark.asyncio, pytest.mark.slow, pytest.mark.long]

PROGRAM: Final = Path(__file__).with_name("triton_http_program.py")


async def test_all_that_the_client_offers(tmp_path: Path) -> None:
    if not PYTHON.exists():
        pytest.skip("TRITON'S CLIENT IS NOT HERE: make triton-client")
    spec = tmp_path / "mesh.yaml"
    spec.write_text(MESH, "utf-8")
    async with mesh_run(str(spec), "--http=0", *PORTS) as mesh:
        await mesh.wait_ready()
        await mesh.wait_for_replicas(2)
        found = await run_program(mesh.http_address, PROGRAM)
    assert len(found["tensors"]) == 12
    assert found["tensors"] == {name: [name, "model", "model", True] for name in found["tensors"]}
    assert found["others"] == {
        "bytes": ["one", "zwölf".encode().decode("latin-1"), "", "\x00\xff"],
        "texts": ["one", "zwölf", ""],
        "brain": ["FP32", [1.5, -2.0]],
        "empty": [0, 3],
        "batch": [[2.0, 2.0]] * 3,
        "version": "model",
    }
    assert found["compressed"] == [True] * 9
    assert found["async"] == list(range(20))
    assert found["asyncio"] == [True, list(range(20))]
    assert found["calls"] == ["own=x", "sequence_end=false", "sequence_id=7", "sequence_start=true", "7"]
    check_told(found["told"])
    check_refusals(found["refusals"])


def check_told(told: dict[str, Any]) -> None:
    assert told["server"] == [True, True, "slotmesh"]
    assert told["ready"] == [True, True, False]
    tensor = {"datatype": "FP32", "shape": [-1]}
    assert told["metadata"] == [[{"name": "x", **tensor}], [{"name": "output", **tensor}], ["batches"]]
    assert told["config"] == ["python", 8, "TYPE_FP32"]
    assert told["statistics"] == [["model", "model", True]]
    assert told["every"] == ["batches", "model"]
    assert told["index"] == [["batches", "batches", "READY"], ["model", "model", "READY"]]


def check_refusals(refusals: list[list[str]]) -> None:
    expected = [
        ("404", "no endpoint is named 'nowhere'"),
        ("404", "no backend of model is named '9'"),
        ("400", "unknown field y"),
        ("404", "'_private' is private"),
        ("500", "no such luck"),
        ("400", "there is no output 'nowhere'"),
        ("400", "outputs[0].parameters.classification: is not supported"),
        ("501", "count yields"),
        ("501", "is not supported"),
        ("501", "is not supported"),
        ("501", "is not supported"),
        ("404", "no endpoint is named 'nowhere'"),
    ]
    assert [status for status, _ in refusals] == [status for status, _ in expected]
    for (_, message), (_, words) in zip(refusals, expected, strict=True):
        assert words in message
        assert "while decoding" not in message


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
async def test_curl_as_it_comes(tmp_path: Path) -> None:
    spec = tmp_path / "mesh.yaml"
    spec.write_text(MESH, "utf-8")
    request = tmp_path / "request.json"
    said = {"name": "x", "shape": [2, 2], "datatype": "FP32", "data": [1, 2, 3, 4]}
    request.write_text(json.dumps({"id": "7", "inputs": [said]}), "utf-8")
    binary = tmp_path / "request.bin"
    text = b'{"inputs":[{"name":"x","shape":[2],"datatype":"UINT8","parameters":{"binary_data_size":2}}]}'
    binary.write_bytes(text + b"\x01\x02")
    large = tmp_path / "large.json"
    large.write_text(json.dumps({"inputs": [said | {"shape": [60_000], "data": [0.125] * 60_000}]}), "utf-8")
    async with mesh_run(str(spec), "--http=0", *PORTS) as mesh:
        await mesh.wait_ready()
        await mesh.wait_for_replicas(2)
        model = f"http://{mesh.http_address}/v2/models/model"
        answer = json.loads(await curl("-d", f"@{request}", f"{model}/infer"))
        assert answer == {
            "model_name": "model",
            "model_version": "model",
            "id": "7",
            "outputs": [{"name": "output", "datatype": "FP32", "shape": [2, 2], "data": [1.0, 2.0, 3.0, 4.0]}],
        }
        length = f"Inference-Header-Content-Length: {len(text)}"
        answer = json.loads(await curl("--data-binary", f"@{binary}", "-H", length, f"{model}/infer"))
        assert answer["outputs"][0]["data"] == [1, 2]
        answer = json.loads(await curl("--compressed", "--data-binary", f"@{large}", f"{model}/infer"))
        assert answer["outputs"][0]["data"] == [0.125] * 60_000
        assert json.loads(await curl(f"{model}/ready")) == {"name": "model", "ready": True}
        assert "error" in json.loads(await curl("-d", "{", f"{model}/infer"))


async def curl(*arguments: str) -> str:
    said = await program("curl", "-s", "-S", *arguments)
    assert said.status == 0, said.err
    return said.out
