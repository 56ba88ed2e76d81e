"""How the process of a replica that another system has started differs from what its backend wants."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from replica_service.shell.process_facts import cpu_quota, memory_bound, own_facts
from slotmesh.spec.environment import EnvironmentValue, ProcessFacts, ProcessSettings, process_difference

VARIABLES = ("A", "B")
WANTED = ProcessSettings(
    env={name: EnvironmentValue(value="hunter-2") for name in VARIABLES},
    python="/opt/venv",
    cwd="/srv/",
    cpus=1.5,
    memory=64 << 20,
)
SAME: dict[str, Any] = {
    "python": "/opt/venv/bin/python",
    "prefix": "/opt/venv",
    "cwd": "/srv",
    "cpus": 2.0,
    "memory": 64 << 20,
    "variables": frozenset({*VARIABLES, "C"}),
}
HEAD = "its process differs from what its backend wants: "


def test_a_process_that_is_as_wanted_has_no_difference() -> None:
    assert process_difference(WANTED, ProcessFacts(**SAME)) == ""
    assert process_difference(WANTED, ProcessFacts(**(SAME | {"cpus": 1.5, "memory": (64 << 20) - 4096}))) == ""
    assert process_difference(WANTED, ProcessFacts()) == "", "unknown is no difference"
    assert process_difference(ProcessSettings(), ProcessFacts(**SAME)) == ""
    relative = ProcessSettings(python="venv", cwd="app")
    assert process_difference(relative, ProcessFacts(**SAME)) == "", "where they begin is not known"


@pytest.mark.parametrize(
    ("part", "value", "text"),
    [
        ("prefix", "/usr", "its python is /opt/venv/bin/python, not /opt/venv"),
        ("cwd", "/", "its cwd is /, not /srv"),
        ("cpus", 2.1, "it may use 2.1 cpus, not 1.5"),
        ("cpus", 1.4, "it may use 1.4 cpus, not 1.5"),
        ("memory", 0, "its memory is not bounded, not 64MiB"),
        ("memory", 128 << 20, "its memory is 128MiB, not 64MiB"),
        ("memory", 32 << 20, "its memory is 32MiB, not 64MiB"),
        ("variables", frozenset({"B"}), "it lacks the variables A"),
    ],
)
def test_each_part_that_differs_is_named(part: str, value: object, text: str) -> None:
    assert process_difference(WANTED, ProcessFacts(**(SAME | {part: value}))) == HEAD + text


def test_several_are_named_together_and_no_value_is() -> None:
    many = ProcessSettings(env={f"V{number}": EnvironmentValue(value="hunter-2") for number in range(7)}, cwd="/a")
    text = process_difference(many, ProcessFacts(**SAME))
    assert text == f"{HEAD}its cwd is /srv, not /a; it lacks the variables V0, V1, V2, V3, V4 and others"


def test_a_replica_reports_names_and_no_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_NAME_OF_TEST", "hunter-2")
    monkeypatch.setenv("N" * 129, "")
    facts = own_facts()
    assert (facts.python, facts.prefix, facts.cwd) == (sys.executable, sys.prefix, str(Path.cwd()))
    assert 0 < facts.cpus <= len(os.sched_getaffinity(0))
    assert "A_NAME_OF_TEST" in facts.variables
    assert "N" * 129 not in facts.variables
    assert "hunter-2" not in str(facts)


def test_bounds_of_cgroups() -> None:
    assert [cpu_quota(it) for it in ("150000 100000", "max 100000", "", "1", "1 0")] == [1.5, 0, 0, 0, 0]
    assert [memory_bound(it) for it in ("4096", "max", "", "x")] == [4096, 0, None, None]
