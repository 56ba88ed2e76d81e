"""The carts example as a user starts it: replicas go from 2 to 4 to 2, one is killed, and no update is lost."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.example_runs import report_of

pytestmark = pytest.mark.long


@pytest.mark.asyncio
@pytest.mark.slow
@pytest.mark.timeout(120)
async def test_no_update_is_lost_and_none_is_made_twice(tmp_path: Path) -> None:
    report = await report_of("examples.carts.run", "--users=40", log=tmp_path / "stderr.log")
    assert report.startswith("carts: 40, 40 right\n"), report
    moved = re.search(r"^items: \d+; carts whose key has changed its owner: (\d+)$", report, re.MULTILINE)
    assert moved is not None, report
    assert int(moved[1]) > 0, report
