"""Rules for alerts, tried by Prometheus' own tool."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.mesh import ROOT

pytestmark = pytest.mark.skipif(shutil.which("promtool") is None, reason="there is no promtool (Debian: prometheus)")

FOLDER = ROOT / "deploy" / "prometheus"


def promtool(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["promtool", *arguments], capture_output=True, text=True, check=False)  # noqa: S607 - on the PATH


def test_the_rules_fire_when_they_should() -> None:
    done = promtool("test", "rules", str(FOLDER / "alerts_test.yaml"))
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_rules_are_valid() -> None:
    done = promtool("check", "rules", str(FOLDER / "alerts.yaml"))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", ["prometheus.yaml", "prometheus-tls.yaml"])
def test_the_configurations_for_compose_are_valid(name: str) -> None:
    done = promtool("check", "config", "--syntax-only", str(FOLDER / name))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(("said", "instead"), [("> 0.01", "> 0.5"), ("crash_loops > 0", "crash_loops > 1")])
def test_the_tests_of_rules_notice_a_rule_that_does_not_fire(tmp_path: Path, said: str, instead: str) -> None:
    rules = (FOLDER / "alerts.yaml").read_text("utf-8")
    assert said in rules
    (tmp_path / "alerts.yaml").write_text(rules.replace(said, instead), "utf-8")
    shutil.copy(FOLDER / "alerts_test.yaml", tmp_path)
    assert promtool("test", "rules", str(tmp_path / "alerts_test.yaml")).returncode != 0
