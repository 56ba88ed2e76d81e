"""A state file whose writer is killed at any moment has the old or the new state."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
KILLS = 200


@pytest.mark.long
@pytest.mark.slow
def test_killed_at_random_points_the_last_acknowledged_change_is_there(tmp_path: Path) -> None:
    child = subprocess.run(
        [sys.executable, "-m", "tests.support.state_killing", str(tmp_path), str(KILLS), "7"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert child.returncode == 0, child.stderr
    assert (told := re.fullmatch(rf"{KILLS} kills, (\d+) changes, (\d+) of them not acknowledged\n", child.stdout))
    assert int(told[1]) > KILLS / 2
