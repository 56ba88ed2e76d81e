"""What the previous release offers by name is still there: the Python API, reasons, metrics, settings, commands.

A name is removed in a major version only (docs/compatibility.md).
"""

from __future__ import annotations

import json
import subprocess
from functools import cache
from typing import Any

import pytest

from tests.support.faults import THIS, Installation


@cache
def names_of(installation: Installation) -> dict[str, Any]:
    program = [installation.python, "-m", "tests.compat.names"]
    done = subprocess.run(program, cwd=installation.folder, capture_output=True, timeout=60, check=True)
    names: dict[str, Any] = json.loads(done.stdout)
    return names


def broken(old: list[list[Any]] | None, new: list[list[Any]] | None) -> str:
    """Why a call that fits the old parameters may not fit the new ones; empty: it does."""
    if old is None or new is None:
        return "" if old is None else "cannot be called"
    names = {name: (kind, may_lack) for name, kind, may_lack in new}
    for name, kind, may_lack in old:
        if name not in names:
            return f"has no parameter {name}"
        if names[name][0] != kind or (may_lack and not names[name][1]):
            return f"takes {name} otherwise"
    if added := [name for name, _, may_lack in new if not may_lack and name not in {it[0] for it in old}]:
        return f"needs {added[0]}"
    before, after = ([name for name, kind, _ in it if kind.startswith("POSITIONAL")] for it in (old, new))
    return "" if after[: len(before)] == before else "has its parameters in another order"


def test_the_python_api_is_still_there(previous: Installation) -> None:
    old, new = names_of(previous)["Python"], names_of(THIS)["Python"]
    assert len(old) > 500
    assert sorted(old.keys() - new.keys()) == []
    assert {name: why for name in old if (why := broken(old[name], new[name]))} == {}


@pytest.mark.parametrize("kind", ["reasons", "settings of backends", "settings of processes", "commands"])
def test_names_are_still_there(previous: Installation, kind: str) -> None:
    old, new = (set(names_of(it)[kind]) for it in (previous, THIS))
    assert old
    assert sorted(old - new) == []


def test_metrics_are_still_there_with_their_labels(previous: Installation) -> None:
    old, new = (names_of(it)["metrics"] for it in (previous, THIS))
    assert {name: labels for name, labels in old.items() if not set(labels) <= set(new.get(name, ()))} == {}
    assert sorted(old.keys() - new.keys()) == []


ONE = ["x", "POSITIONAL_OR_KEYWORD", False]


@pytest.mark.parametrize(
    ("new", "why"),
    [
        ([ONE], ""),
        ([ONE, ["y", "KEYWORD_ONLY", True]], ""),
        ([["x", "POSITIONAL_OR_KEYWORD", True]], ""),
        ([ONE, ["y", "KEYWORD_ONLY", False]], "needs y"),
        ([], "has no parameter x"),
        ([["x", "KEYWORD_ONLY", False]], "takes x otherwise"),
        ([["y", "POSITIONAL_OR_KEYWORD", True], ONE], "has its parameters in another order"),
        (None, "cannot be called"),
    ],
)
def test_what_would_break_a_call_is_found(new: list[list[Any]] | None, why: str) -> None:
    assert broken([ONE], new) == why
