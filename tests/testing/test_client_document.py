"""docs/client.md: each snippet of it runs in a real mesh."""

from __future__ import annotations

from typing import Final

import pytest

from tests.support.mesh import ROOT
from tests.support.snippets import run_python, snippets_of

SNIPPETS: Final = snippets_of(ROOT / "docs" / "client.md")
PREAMBLE: Final = [each for each in SNIPPETS if not each.section]


def test_each_snippet_is_python() -> None:
    assert {each.language for each in SNIPPETS} == {"python"}
    assert len(PREAMBLE) == 1


@pytest.mark.asyncio
@pytest.mark.parametrize("section", sorted({each.section for each in SNIPPETS} - {""}))
async def test_it_runs(section: str) -> None:
    await run_python("client_document", PREAMBLE, [each for each in SNIPPETS if each.section == section])
