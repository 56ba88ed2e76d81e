"""What CONTRIBUTING.md says of commands, the Makefile has; the quick run leaves no room of units or properties out."""

from __future__ import annotations

import re
from pathlib import Path

from tests.arch.sources import ROOT
from tests.arch.test_contributing_document import section

MAKEFILE = (ROOT / "Makefile").read_text("utf-8")


def test_the_table_of_commands_names_what_makes_help_does() -> None:
    """`run` to `simulate`; what only names parts of another one has no row."""
    helped = set(re.findall(r"^([a-z-]+):[^\n]*## ", MAKEFILE, re.MULTILINE))
    rows = set(re.findall(r"^\| `make ([a-z-]+)` \| \S", section("Commands"), re.MULTILINE))
    assert sorted(rows - helped) == []
    assert sorted(helped - rows) == ["help", "node-client"]


def test_the_quick_run_has_what_it_names_and_all_units_and_properties() -> None:
    quick = re.search(r"^QUICK := (.*?[^\\])$", MAKEFILE, re.MULTILINE | re.DOTALL)
    assert quick is not None
    folders, _, contracts = quick[1].partition(" $(addprefix tests/contract/, ")
    assert folders.split() == ["tests/unit", "tests/properties"]
    named = re.findall(r"[\w/.]+", contracts)
    assert len(named) > 5
    assert [each for each in named if not (ROOT / "tests" / "contract" / each).exists()] == []


def test_the_profile_of_hypothesis_decides_how_many_examples_there_are() -> None:
    """`max_examples=250` would draw as many in the quick run: `examples(250)` does not."""
    fixed = [
        path.relative_to(ROOT).as_posix()
        for path in sorted((ROOT / "tests").rglob("*.py"))
        if path.name not in {"conftest.py", Path(__file__).name}
        and re.search(r"max_examples=(?!examples\()", path.read_text("utf-8"))
    ]
    assert fixed == []
