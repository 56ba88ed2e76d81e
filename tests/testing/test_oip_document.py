"""docs/oip.md: its snippets run, and its lines for Triton's client are run by that client, where it is."""

from __future__ import annotations

import asyncio
import re
from asyncio.subprocess import PIPE, STDOUT
from itertools import groupby
from pathlib import Path

import pytest

from slotmesh.oip.datatypes import DATATYPES
from slotmesh.oip.service import EXTENSIONS
from tests.e2e.test_triton_client import PYTHON
from tests.support.mesh import ROOT, started_mesh
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
    assert {each.language for each in SNIPPETS} == {"python", "triton"}
    assert set(SECTIONS) == {"Methods", "Batches"}


@pytest.mark.asyncio
@pytest.mark.parametrize("section", SECTIONS)
async def test_python_runs(section: str) -> None:
    await run_python(f"oip_{section.lower()}", PREAMBLE, SECTIONS[section])


@pytest.mark.asyncio
async def test_lines_for_tritons_client_run(tmp_path: Path) -> None:
    if not PYTHON.exists():
        pytest.skip("TRITON'S CLIENT IS NOT HERE: make triton-client")
    (tmp_path / "model.py").write_text(PREAMBLE[0].text, "utf-8")
    (program,) = (each.text for each in SNIPPETS if each.language == "triton")
    async with started_mesh("model:Classifier", cwd=tmp_path) as mesh:
        text = program.replace("localhost:7071", mesh.router_address)
        run = await asyncio.create_subprocess_exec(PYTHON, "-c", text, stdout=PIPE, stderr=STDOUT)
        async with asyncio.timeout(60):
            printed, _ = await run.communicate()
    assert run.returncode == 0, printed.decode()


def test_every_datatype_is_in_the_table() -> None:
    rows = re.findall(r"^\| ([A-Z0-9, ]+) \|", DOCUMENT.read_text("utf-8"), re.MULTILINE)
    assert sorted(name for row in rows for name in row.split(", ")) == sorted(DATATYPES)
    assert "statistics" in EXTENSIONS
