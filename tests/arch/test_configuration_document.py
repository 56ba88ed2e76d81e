"""docs/configuration.md has each setting of a backend, as the model declares it."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.arch.sources import ROOT


def test_the_table_of_settings_is_what_the_model_says() -> None:
    checked = subprocess.run(
        [sys.executable, ROOT / "tools/generate_settings_table.py", "--check"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=60,
    )
    assert not checked.returncode, checked.stderr
