"""The units of deploy/systemd: systemd reads them, and their processes start with the settings that they have."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Final

import pytest

from tests.contract.deployment.test_kubernetes import SETTINGS
from tests.support.mesh import ROOT

UNITS: Final = sorted((ROOT / "deploy/systemd").glob("*.service"))
PYTHON: Final = "/opt/slotmesh/bin/python"
REPLICA: Final = {"SLOTMESH_HANDLER": "greeter:Greeter", "SLOTMESH_BACKEND": "greeter-v1"}
"""As /etc/slotmesh/replica-NAME.env has them."""


def values(unit: Path, name: str) -> list[str]:
    return re.findall(rf"^{name}=(.*)$", unit.read_text("utf-8"), re.MULTILINE)


def environment() -> dict[str, str]:
    lines = (ROOT / "deploy/systemd/mesh.env").read_text("utf-8").splitlines()
    pairs = (line.partition("=") for line in lines if line and not line.startswith("#"))
    return {name: value for name, _, value in pairs if not name.startswith("SLOTMESH_TLS")}


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="NO SYSTEMD: nothing reads deploy/systemd")
def test_systemd_reads_the_units(tmp_path: Path) -> None:
    for unit in UNITS:
        (tmp_path / unit.name).write_text(unit.read_text("utf-8").replace(PYTHON, sys.executable))
    command = ["systemd-analyze", "verify", "--man=no", *map(str, tmp_path.glob("*.service"))]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("unit", UNITS, ids=lambda it: it.name)
def test_a_process_starts_with_its_settings_and_has_the_time_to_drain(unit: Path) -> None:
    (command,) = values(unit, "ExecStart")
    python, module, service, *flags = command.replace("%H", "mesh-1").replace("%i", "a").split()
    assert (python, module) == (PYTHON, "-m")
    own = dict(it.split("=", 1) for it in values(unit, "Environment"))
    env = {**REPLICA, **own, **environment(), "SLOTMESH_INSECURE": "true"}
    settings = SETTINGS[service].parse(flags, env, prog=service)
    (stop,) = values(unit, "TimeoutStopSec")
    assert timedelta(seconds=int(stop)) > getattr(settings, "graceful_timeout", timedelta(0)) + timedelta(seconds=5)
