"""Where node is, and the client that runs on it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

import pytest

CLIENT: Final = Path(__file__).resolve().parents[2] / "examples" / "clients" / "node"
ADAPTER: Final = CLIENT / "adapter.js"


def node() -> str:
    """The program. Skips the test where there is none; fails it where only the client's packages are missing."""
    program = shutil.which("node")
    if program is None:
        pytest.skip("node is not installed")
    if not (CLIENT / "node_modules").is_dir():
        pytest.fail("the Node client's packages are missing: make node-client")
    return program
