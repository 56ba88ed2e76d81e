"""The section of docs/traffic.md on balancers: its example runs, and so does the test of it."""

from __future__ import annotations

import pytest

from tests.arch.sources import ROOT
from tests.support.snippets import run_python, snippets_of


@pytest.mark.asyncio
async def test_the_example_of_a_balancer_and_its_test_run() -> None:
    snippets = snippets_of(ROOT / "docs" / "traffic.md")
    section = [each for each in snippets if each.section == "Which replica: balancers" and each.language == "python"]
    assert len(section) == 2
    module = await run_python("balancers_document", [], section)
    assert callable(module.test_most_memory_prefers_room)
