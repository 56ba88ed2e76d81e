"""Routers and replicas die, or are restarted: what sessions promise holds, and calls flow again at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.session_scenarios import run
from tests.support.tiers import long


@pytest.mark.asyncio
@pytest.mark.timeout(90)
@pytest.mark.parametrize(
    "scenario",
    ["only-router-killed", *map(long, ("both-killed", "routers-killed", "routers-restarted", "replicas-killed"))],
)
async def test_nothing_is_lost_doubled_or_out_of_order(scenario: str, tmp_path: Path) -> None:
    await run(scenario, None, tmp_path)
