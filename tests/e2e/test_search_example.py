"""The search example as a user starts it: real processes, every answer checked, nothing left behind."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.example_runs import report_of

pytestmark = pytest.mark.long


@pytest.mark.asyncio
@pytest.mark.timeout(120)
async def test_every_answer_is_right(tmp_path: Path) -> None:
    report = await report_of("examples.search.run", "--queries=40", "--together=8", log=tmp_path / "stderr.log")
    assert report.startswith("queries: 40, 40 right, 8 at a time\n"), report
    assert re.search(r"^a query, with 7 calls of other handlers: p50 [\d.]+ ms$", report, re.MULTILINE), report
