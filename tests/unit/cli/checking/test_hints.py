"""What hints of the command line tell people to type: each is a command that there is, with arguments that it takes."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest
from typer.testing import CliRunner

from slotmesh.cli.app import app
from slotmesh.cli.console import WRONG_INPUT
from tests.arch.sources import ROOT

NOBODY: Final = "127.0.0.1:1"
PLACES: Final = (
    *sorted((ROOT / "slotmesh" / "cli" / "checking").glob("*.py")),
    ROOT / "router_service" / "core" / "routing" / "waiting_causes.py",
    *sorted((ROOT / "deploy" / "prometheus").glob("alerts.yaml")),
)
FILLED: Final = {"{name} 1": "b 1", "BACKEND=1": "b=1", "{route_subject(route.path)}": "route/x"}
"""What stands for what in a hint."""
_HINT: Final = re.compile(r"`(slotmesh [a-z][^`\n]*|python -m (?:router|replica)_service[^`\n]*)`")
_HOLE: Final = re.compile(r"\{\{.*?\}\}|\{[^}]*\}")


def hints() -> set[str]:
    """All that are between backticks, with names in place of holes."""
    found: set[str] = set()
    for path in PLACES:
        for hint in _HINT.findall(path.read_text("utf-8")):
            for hole, name in FILLED.items():
                hint = hint.replace(hole, name)  # noqa: PLW2901 - step by step
            found.add(_HOLE.sub("b", hint))
    return found


def commands() -> list[str]:
    """Those of the command line that are whole, without `…`, placeholders in capitals, or another command in them."""
    return sorted(
        hint
        for hint in hints()
        if hint.startswith("slotmesh ") and len(hint.split()) > 2 and not re.search(r"…|\$\(|[ =/][A-Z]{2,}|\|", hint)
    )


@pytest.mark.parametrize("hint", commands())
def test_a_hint_is_a_command_that_is_understood(hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing answers: it fails for that, and not for how it is written."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SLOTMESH_ADDRESS", NOBODY)
    monkeypatch.setenv("SLOTMESH_CONTROLLER", NOBODY)
    for name in ("mesh.yaml", "tokens.yaml"):
        (tmp_path / name).write_text("backends: {b: {}}\nendpoints: {e: {traffic: {b: 1}}}\n", "utf-8")
    result = CliRunner().invoke(app, shlex.split(hint)[1:])
    assert result.exit_code != WRONG_INPUT, result.output


@pytest.mark.parametrize("hint", sorted(hint for hint in hints() if hint.startswith("python -m")))
def test_flags_of_services_in_hints_are_theirs(hint: str) -> None:
    words = hint.split()
    told = subprocess.run(
        [sys.executable, *words[1:3], "--help"], capture_output=True, text=True, check=True, cwd=ROOT, timeout=60
    )
    assert all(word in told.stdout for word in words if word.startswith("--"))
    assert not any(
        re.fullmatch(r"[A-Z:]+", word) and not words[at - 1].startswith("--") for at, word in enumerate(words)
    )
