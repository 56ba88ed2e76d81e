"""mypy --strict and pyright accept each right use in this folder, and report each wrong one."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from tests.arch.sources import ROOT
from tests.unit.cli.test_interface_source import hiding_source

pytestmark = pytest.mark.slow


def problems(*command: str) -> str:
    """What a type checker prints; empty if it has nothing to report."""
    done = subprocess.run([sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stdout + done.stderr


def test_mypy() -> None:
    assert not problems("mypy", "tests/typed")


def test_pyright() -> None:
    if importlib.util.find_spec("pyright") is None:
        pytest.skip(
            "pyright is NOT INSTALLED: what it reports of wrong calls is NOT TESTED (pip install 'pyright[nodejs]')"
        )
    assert not problems("pyright", "--pythonpath", sys.executable, "--project", "tests/typed")


def test_interfaces_with_members_that_are_named_like_types(tmp_path: Path) -> None:
    path = tmp_path / "hiding_stubs.py"
    path.write_text(hiding_source())
    assert not problems("mypy", "--strict", str(path))
    if importlib.util.find_spec("pyright") is not None:
        assert not problems("pyright", "--pythonpath", sys.executable, str(path))
