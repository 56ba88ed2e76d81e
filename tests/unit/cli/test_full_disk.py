"""A command whose output is redirected to a disk that is full."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

FULL = Path("/dev/full")


@pytest.mark.skipif(not FULL.exists(), reason="there is no device that is full")
@pytest.mark.parametrize("form", ["table", "json"])
def test_it_is_one_line_and_a_status(form: str) -> None:
    with FULL.open("w") as full:
        ran = subprocess.run(
            [sys.executable, "-m", "slotmesh.cli", "explain", "-o", form],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=60,
        )
    assert (ran.returncode, ran.stderr) == (1, "the output cannot be written: No space left on device\n")
