"""docs/state.md: its handler is run, what it links to is there, and its statement is the one of the example."""

from __future__ import annotations

import re

import pytest

from tests.support.mesh import ROOT
from tests.support.snippets import run_python, snippets_of

DOCUMENT = ROOT / "docs" / "state.md"
PYTHON = [each for each in snippets_of(DOCUMENT) if each.language == "python"]
PREAMBLE = [each for each in snippets_of(ROOT / "docs" / "handlers.md") if not each.section]


@pytest.mark.asyncio
async def test_the_handler_with_hooks_runs() -> None:
    assert len(PYTHON) == 1
    await run_python("state_document", PREAMBLE, PYTHON)


def test_every_file_and_heading_that_is_linked_to_is_there() -> None:
    text = DOCUMENT.read_text("utf-8")
    anchors = {
        re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-")
        for heading in re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    }
    for target in re.findall(r"\]\(([^)]+)\)", text):
        file, _, anchor = target.partition("#")
        assert not file or (DOCUMENT.parent / file).exists(), target
        assert not anchor or file or anchor in anchors, target


def test_the_conditions_of_its_statement_are_those_of_the_example() -> None:
    example = (ROOT / "examples" / "carts" / "store.py").read_text("utf-8")
    for condition in ("user =", "version =", "owner_epoch <="):
        assert condition in example.partition("UPDATE carts")[2]
        assert condition in DOCUMENT.read_text("utf-8").partition("UPDATE carts")[2]
