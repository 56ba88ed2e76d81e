"""The prefill-and-decode example as a user starts it: real processes, every word checked, nothing left behind."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.example_runs import report_of

pytestmark = pytest.mark.long


@pytest.mark.asyncio
@pytest.mark.timeout(120)
async def test_every_word_is_right(tmp_path: Path) -> None:
    flags = ("--requests=40", "--together=8", "--words=8")
    report = await report_of("examples.prefill_decode.run", *flags, log=tmp_path / "stderr.log")
    assert report.startswith("requests: 40, 40 right, 8 at a time\n"), report
    assert re.search(r"^reserving both: p50 [\d.]+ ms$", report, re.MULTILINE), report
    pairs = re.findall(r"^  Prefill-\S+ -> Decode-\S+  (\d+)$", report, re.MULTILINE)
    assert sum(map(int, pairs)) == 40, report
