"""docs/handlers.md: every snippet of it is run, for real."""

from __future__ import annotations

import re
from itertools import groupby
from pathlib import Path

import pytest

from slotmesh.spec.document import parse_mesh
from tests.support.mesh import ROOT, mesh_run
from tests.support.shell import slotmesh
from tests.support.snippets import Snippet, run_python, snippets_of

DOCUMENT = ROOT / "docs" / "handlers.md"
SNIPPETS = snippets_of(DOCUMENT)
PREAMBLE = [each for each in SNIPPETS if not each.section]
FIRST = "The first ten lines"

PYTHON = {
    section: list(group)
    for section, group in groupby((each for each in SNIPPETS if each.language == "python"), lambda each: each.section)
    if section
}


def test_there_is_nothing_that_nobody_runs() -> None:
    unknown = [str(each) for each in SNIPPETS if each.language not in {"python", "yaml", "console"}]
    assert not unknown
    assert {each.section for each in SNIPPETS if each.language == "console"} == {FIRST}


def test_every_heading_that_is_linked_to_is_there() -> None:
    text = DOCUMENT.read_text("utf-8")
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    anchors = {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}
    for target in re.findall(r"\]\(([^)]+)\)", text):
        file, _, anchor = target.partition("#")
        assert not file or (DOCUMENT.parent / file).exists(), target
        assert not anchor or file or anchor in anchors, target


@pytest.mark.asyncio
@pytest.mark.parametrize("section", PYTHON)
async def test_python_runs(section: str) -> None:
    name = _module_name(section)
    await run_python(name, PREAMBLE, PYTHON[section])


@pytest.mark.parametrize("snippet", [each for each in SNIPPETS if each.language == "yaml"], ids=str)
def test_specifications_are_sound(snippet: Snippet) -> None:
    mesh = parse_mesh(snippet.text)
    assert mesh.backends
    assert mesh.endpoints


@pytest.mark.asyncio
async def test_commands_print_what_they_say(tmp_path: Path) -> None:
    (handler,) = (each.text for each in PYTHON[FIRST] if each.text.startswith("# greeter.py"))
    (tmp_path / "greeter.py").write_text(handler, "utf-8")
    (console,) = (each.text for each in SNIPPETS if each.language == "console")
    run, ready, call, answer = console.splitlines()
    program, command, *arguments = run.removeprefix("$ ").split()
    assert (program, command) == ("slotmesh", "run")
    assert ready.startswith("ready router=")  # `wait_ready` reads such a line
    env = {"PYTHONPATH": str(ROOT)}
    async with mesh_run(*arguments, "--router-port=0", "--controller-port=0", cwd=tmp_path, env=env) as mesh:
        await mesh.wait_ready()
        words = re.findall(r"'([^']*)'|(\S+)", call.removeprefix("$ slotmesh "))
        flags = ["--address", mesh.router_address]
        said = await slotmesh(*(quoted or plain for quoted, plain in words), *flags)
    assert said.out.strip() == answer


@pytest.mark.asyncio
async def test_a_snippet_that_is_wrong_fails_at_its_line(tmp_path: Path) -> None:
    document = tmp_path / "wrong.md"
    document.write_text("# Title\n\n## One\n\n```python\nx = 1\nasync def test_it() -> None:\n    assert x == 2\n```\n")
    with pytest.raises(AssertionError) as failed:
        await run_python("wrong_document", [], snippets_of(document))
    assert failed.traceback[-1].path == document
    assert failed.traceback[-1].lineno + 1 == 8


def _module_name(section: str) -> str:
    return "handlers_document_" + re.sub(r"\W+", "_", section).lower()
