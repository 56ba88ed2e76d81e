"""Findings as people read them: by section, a line each, and below what is wrong what to do."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Final, TextIO

from rich.text import Text

from slotmesh.cli.checking.finding import MeshFinding, Severity
from slotmesh.cli.view.report import console_of

_MARKS: Final = {Severity.OK: ("√", "green"), Severity.WARNING: ("‼", "yellow"), Severity.ERROR: ("×", "red")}


def print_findings(findings: Sequence[MeshFinding], out: TextIO) -> None:
    """Colours only where `out` is a terminal."""
    console = console_of(out)
    for section, group in groupby(findings, key=lambda it: it.section):
        console.print(Text(section.value, style="bold"))
        for finding in group:
            mark, style = _MARKS[finding.severity]
            console.print(Text(f"{mark} {finding.text}", style=style), soft_wrap=True)
            if finding.fix:
                console.print(Text(f"    {finding.fix}"), soft_wrap=True)
    errors, warnings = (sum(it.severity is one for it in findings) for one in (Severity.ERROR, Severity.WARNING))
    verdict = "all is well" if not errors + warnings else f"{_count(errors, 'error')}, {_count(warnings, 'warning')}"
    console.print(Text(f"\n{verdict}", style="red" if errors else "yellow" if warnings else "green"))


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
