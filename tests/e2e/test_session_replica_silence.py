"""A replica stands still, or is cut off silently, one way or both: it starts nothing late, and nothing runs twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.session_scenarios import run

pytestmark = pytest.mark.long


@pytest.mark.asyncio
@pytest.mark.timeout(90)
@pytest.mark.parametrize("scenario", ["replica-stopped", "replica-cut-off", "replica-not-heard", "replica-not-hearing"])
async def test_a_silent_replica_starts_nothing_late(scenario: str, tmp_path: Path) -> None:
    await run(scenario, None, tmp_path)
