"""Triton's own client for gRPC, unchanged, against a real mesh."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.mesh import ROOT, mesh_run
from tests.support.shell import program

pytestmark = [pytest.mark.asyncio, pytest.mark.long]

PYTHON: Final = ROOT / ".venv-triton" / "bin" / "python"
PROGRAM: Final = Path(__file__).with_name("triton_program.py")
TIMEOUT_S: Final = 90.0
PORTS: Final = ("--router-port=0", "--controller-port=0")
MESH: Final = """
backends:
  model: {handler: "tests.contract.inference.handlers:Model"}
  batches: {handler: "tests.contract.inference.handlers:Batches"}
endpoints:
  model: {traffic: {model: 1}}
  batches: {traffic: {batches: 1}}
"""


async def run_program(address: str, path: Path = PROGRAM) -> Any:
    said = await program(PYTHON, path, address, timeout=TIMEOUT_S)
    assert said.status == 0, said.err
    return json.loads(said.out)


@pytest.mark.slow
async def test_all_that_the_client_offers(tmp_path: Path) -> None:
    if not PYTHON.exists():
        pytest.skip("TRITON'S CLIENT IS NOT HERE: make triton-client")
    spec = tmp_path / "mesh.yaml"
    spec.write_text(MESH, "utf-8")
    async with mesh_run(str(spec), *PORTS) as mesh:
        await mesh.wait_ready()
        await mesh.wait_for_replicas(2)
        found = await run_program(mesh.router_address)
    assert found["raw"] == {name: [name, "model", True] for name in ("FP32", "FP16", "INT8", "UINT64", "BOOL")}
    assert found["bytes"] == ["one", "zwölf", ""]
    assert found["typed"] == [1.0, 2.5, -3.0]
    assert found["async"] == list(range(20))
    assert found["batch"] == [[2.0, 2.0]] * 3
    stream = found["stream"]
    assert stream["plain"] == [[str(index), index] for index in range(10)]
    assert (stream["yielded"], stream["final"]) == ([0, 1, 2], [False, False, False, True])
    assert "no such luck" in stream["error"]
    check_told(found["told"])
    check_refusals(found["refusals"])


def check_told(told: dict[str, Any]) -> None:
    assert told["server"] == [True, True, "slotmesh"]
    assert told["ready"] == [True, True]
    tensor = {"datatype": "FP32", "shape": ["-1"]}
    assert told["metadata"] == [[{"name": "x", **tensor}], [{"name": "output", **tensor}], ["batches"]]
    assert told["config"][:2] == ["python", 8]
    assert told["config"][2][0]["data_type"] == "TYPE_FP32"
    assert told["statistics"] == [["model", "model", True]]
    assert told["index"] == [["batches", "batches", "READY"], ["model", "model", "READY"]]


def check_refusals(refusals: list[list[str]]) -> None:
    expected = [
        ("NOT_FOUND", "no endpoint is named 'nowhere'"),
        ("NOT_FOUND", "no backend of model is named '9'"),
        ("INVALID_ARGUMENT", "unknown field y"),
        ("NOT_FOUND", "'_private' is private"),
        ("UNKNOWN", "no such luck"),
        ("INVALID_ARGUMENT", "there is no output 'nowhere'"),
        ("UNIMPLEMENTED", ""),
    ]
    assert [status for status, _ in refusals] == [f"StatusCode.{status}" for status, _ in expected]
    for (_, message), (_, words) in zip(refusals, expected, strict=True):
        assert words in message
