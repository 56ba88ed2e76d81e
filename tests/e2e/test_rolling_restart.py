"""All replicas are restarted three times under load, in each way that there is: no call fails, no order is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.session_scenarios import run

pytestmark = pytest.mark.long


@pytest.mark.asyncio
@pytest.mark.timeout(150)
async def test_no_call_fails_and_no_order_is_lost(tmp_path: Path) -> None:
    await run("replicas-restarted", None, tmp_path)
