"""docs/oip.md: its snippets run; lines for Triton's clients are run by these, where they are, and curl's by curl."""

from __future__ import annotations

import re
import shutil
from asyncio.subprocess import STDOUT
from collections.abc import AsyncIterator
from itertools import groupby
from pathlib import Path

import pytest
import pytest_asyncio

from slotmesh.calls.method_outlines import DATATYPES
from slotmesh.oip.model import EXTENSIONS
from tests.e2e.test_triton_client import PYTHON
from tests.support.console import commands_of
from tests.support.mesh import ROOT, MeshRun, started_mesh
from tests.support.shell import program
from tests.support.snippets import run_python, snippets_of

DOCUMENT = ROOT / "docs" / "oip.md"
SNIPPETS = snippets_of(DOCUMENT)
PREAMBLE = [each for each in SNIPPETS if not each.section and each.language == "python"]
SECTIONS = {
    section: list(group)
    for section, group in groupby((each for each in SNIPPETS if each.language == "python"), lambda each: each.section)
    if section
}


def test_there_is_nothing_that_nobody_runs() -> None:
    assert {each.language for each in SNIPPETS} == {"python", "triton", "console"}
    assert set(SECTIONS) == {"Methods", "Batches"}


@pytest.mark.asyncio
@pytest.mark.parametrize("section", SECTIONS)
async def test_python_runs(section: str) -> None:
    await run_python(f"oip_{section.lower()}", PREAMBLE, SECTIONS[section])


@pytest_asyncio.fixture
async def classifier(tmp_path: Path) -> AsyncIterator[MeshRun]:
    """What the document starts."""
    (tmp_path / "model.py").write_text(PREAMBLE[0].text, "utf-8")
    env = {"PYTHONPATH": str(ROOT)}
    async with started_mesh("model:Classifier", cwd=tmp_path, env=env, flags=["--http=0"]) as mesh:
        await mesh.wait_for_replicas(1)
        yield mesh


def addressed(text: str, mesh: MeshRun) -> str:
    return text.replace("localhost:7071", mesh.router_address).replace("localhost:8080", mesh.http_address)


async def printed(*command: str | Path) -> tuple[int | None, str]:
    said = await program(*command, stderr=STDOUT)
    return said.status, said.out


@pytest.mark.long
@pytest.mark.asyncio
async def test_lines_for_tritons_clients_run(classifier: MeshRun) -> None:
    if not PYTHON.exists():
        pytest.skip("TRITON'S CLIENT IS NOT HERE: make triton-client")
    (by_grpc,) = (each.text for each in SNIPPETS if each.language == "triton")
    by_http = by_grpc.replace("tritonclient.grpc", "tritonclient.http").replace("localhost:7071", "localhost:8080")
    assert "grpc" not in by_http
    for text in (by_grpc, by_http):
        status, output = await printed(PYTHON, "-c", addressed(text, classifier))
        assert status == 0, output


@pytest.mark.long
@pytest.mark.asyncio
@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
async def test_commands_print_what_the_document_says(classifier: MeshRun) -> None:
    commands = [it for snippet in SNIPPETS if snippet.language == "console" for it in commands_of(snippet)]
    assert len(commands) == 3
    for command in commands:
        _, output = await printed("bash", "-c", addressed(command.text, classifier))
        assert command.explains(output), f"{command.place}: {command.text}\nprints\n{output}"


def test_every_datatype_is_in_the_table() -> None:
    rows = re.findall(r"^\| ([A-Z0-9, ]+) \|", DOCUMENT.read_text("utf-8"), re.MULTILINE)
    assert sorted(name for row in rows for name in row.split(", ")) == sorted(DATATYPES)
    assert "statistics" in EXTENSIONS
