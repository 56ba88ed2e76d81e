"""docs/own-protos.md: its snippets are run, for real."""

from __future__ import annotations

import re
from typing import Final

import pytest

from slotmesh.spec.document import parse_mesh
from tests.support.mesh import ROOT
from tests.support.snippets import run_python, snippets_of

DOCUMENT: Final = ROOT / "docs" / "own-protos.md"
SNIPPETS: Final = snippets_of(DOCUMENT)
PYTHON: Final = [each for each in SNIPPETS if each.language == "python"]
COMMAND: Final = "slotmesh run examples.own_proto.app:Greeter --proto examples/own_proto/greeter.proto"


def test_there_is_nothing_that_nobody_tries() -> None:
    assert {each.language for each in SNIPPETS} == {"python", "yaml", "console"}


@pytest.mark.asyncio
@pytest.mark.parametrize("section", list(dict.fromkeys(each.section for each in PYTHON)))
async def test_python_runs(section: str) -> None:
    first = PYTHON[0].section
    preamble = [] if section == first else [each for each in PYTHON if each.section == first]
    await run_python("own_protos_document", preamble, [each for each in PYTHON if each.section == section])


def test_the_specification_is_sound() -> None:
    (snippet,) = (each for each in SNIPPETS if each.language == "yaml")
    services = parse_mesh(snippet.text, ROOT).endpoints[0].grpc_services
    assert services is not None
    assert services.names == ("examples.greeter.v1.Greeter",)


def test_its_command_is_that_of_the_example() -> None:
    (snippet,) = (each for each in SNIPPETS if each.language == "console")
    assert COMMAND in snippet.text
    assert COMMAND in (ROOT / "examples" / "own_proto" / "README.md").read_text("utf-8")


def test_every_heading_that_is_linked_to_is_there() -> None:
    for file, anchor in re.findall(r"\]\(([^)#]*)#([\w-]+)\)", DOCUMENT.read_text("utf-8")):
        text = (DOCUMENT.parent / file if file else DOCUMENT).read_text("utf-8")
        headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
        assert anchor in {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}, anchor
