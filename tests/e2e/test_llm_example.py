"""The LLM example as a user starts it: real processes, every word checked, cancelled requests free both slots."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.example_runs import report_of

pytestmark = pytest.mark.long


@pytest.mark.asyncio
@pytest.mark.timeout(180)
async def test_prefixes_are_found_and_slots_are_freed(tmp_path: Path) -> None:
    flags = ("--conversations=8", "--together=8", "--turns=5", "--words=5", "--think=0.1", "--cache=120")
    report = await report_of("examples.llm.run", *flags, log=tmp_path / "stderr.log")
    assert report.startswith("8 conversations of 5 turns, 8 at a time\n"), report
    rows = re.findall(r"^(\S.*?)  +40 +(\d+)% +[\d.]+ ms +[\d.]+ ms$", report, re.MULTILINE)
    hits = {way: int(share) for way, share in rows}
    assert list(hits) == ["least_loaded", "affinity_key", "prefix", "prefix, one call"], report
    assert min(hits["prefix"], hits["prefix, one call"]) > hits["least_loaded"], report
    assert report.endswith("cancelled after the first word: 40, and all slots are free\n"), report
