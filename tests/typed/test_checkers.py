"""mypy --strict and pyright accept each right use in this folder, and report each wrong one."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest

from tests.arch.sources import ROOT

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
