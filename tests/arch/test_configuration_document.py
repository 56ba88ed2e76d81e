"""docs/configuration.md has each setting of a backend, as the model declares it."""

from __future__ import annotations

import os
import subprocess
import sys

from slotmesh.spec.model import SETTINGS
from slotmesh.spec.setting import Change
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


def test_operations_names_each_setting_that_replaces_replicas() -> None:
    text = (ROOT / "docs/operations.md").read_text("utf-8")
    sentence = text.partition("\n## Rollouts\n\n")[2].partition(":")[0]
    replacing = {name for name, it in SETTINGS.items() if it.change is not Change.TAKEN_OVER} - {"code"}
    assert replacing <= set(sentence.split("`"))
