"""The collector of the compose file takes its configuration."""

from __future__ import annotations

import subprocess

from tests.support.collector import BINARY, needs_collector
from tests.support.mesh import ROOT


@needs_collector
def test_a_real_collector_takes_it() -> None:
    file = ROOT / "deploy" / "otel-collector" / "config.yaml"
    done = subprocess.run(
        [BINARY, "validate", "--config", file], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr
