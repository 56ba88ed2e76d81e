"""Writes the diagrams of states into docs/call-states.md, or checks that they are what they should be.

A diagram stands behind a comment that names its table: `<!-- states: MODULE NAME -->`.
"""

from __future__ import annotations

import argparse
import re
import sys
from importlib import import_module
from pathlib import Path
from typing import Final

from slotmesh.calls.state_table import StateTable

DOCUMENT: Final = Path(__file__).resolve().parent.parent / "docs" / "call-states.md"
_DIAGRAM: Final = re.compile(r"(<!-- states: (\S+) (\S+) -->\n)```mermaid\n.*?```", re.DOTALL)


def _drawn(found: re.Match[str]) -> str:
    table = getattr(import_module(found[2]), found[3])
    if not isinstance(table, StateTable):
        raise TypeError(f"{found[2]}.{found[3]}: a StateTable is needed")
    return f"{found[1]}```mermaid\n{table.diagram()}\n```"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; fail if the document is stale")
    is_check = parser.parse_args().check
    before = DOCUMENT.read_text("utf-8")
    after = _DIAGRAM.sub(_drawn, before)
    if is_check and after != before:
        print(f"{DOCUMENT.name}: the diagrams are not those of the tables; run make format", file=sys.stderr)
        return 1
    if after != before:
        DOCUMENT.write_text(after, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
