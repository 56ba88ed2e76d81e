"""docs/call-states.md shows the tables of states as they are."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.arch.sources import ROOT


def test_the_diagrams_are_those_of_the_tables() -> None:
    checked = subprocess.run(
        [sys.executable, ROOT / "tools/generate_state_diagrams.py", "--check"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=60,
    )
    assert not checked.returncode, checked.stderr
