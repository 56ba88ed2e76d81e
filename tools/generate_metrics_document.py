"""Writes the tables of metrics into docs/metrics.md, or checks that they are what they should be.

They follow from the declarations in slotmesh/telemetry/names.py.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from slotmesh.telemetry import names

ROOT: Final = Path(__file__).resolve().parent.parent
DOCUMENT: Final = ROOT / "docs" / "metrics.md"
_MARKED: Final = re.compile(r"(<!-- written: (\w+) -->\n).*?(<!-- end of what is written -->\n)", re.DOTALL)


def table(service: str) -> str:
    """The metrics whose names begin with `slotmesh.SERVICE.`, as Markdown."""
    return "".join(["| metric | labels | meaning |\n|---|---|---|\n", *_rows(service)])


def _rows(service: str) -> Iterator[str]:
    for metric in names.metrics():
        if metric.name.split(".")[1] == service:
            labels = ", ".join(f"`{it.replace('.', '_')}`" for it in metric.attributes)
            yield f"| `{names.prometheus_name(metric)}` | {labels} | {metric.description} |\n"


def written(document: str) -> str:
    """The document with its tables as they should be."""
    return _MARKED.sub(lambda found: f"{found[1]}{table(found[2])}{found[3]}", document)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 where something would change")
    arguments = parser.parse_args()
    before = DOCUMENT.read_text("utf-8")
    after = written(before)
    if before == after:
        return 0
    if arguments.check:
        sys.stderr.write(f"{DOCUMENT.relative_to(ROOT)} is not what the code says: run {Path(__file__).name}\n")
        return 1
    DOCUMENT.write_text(after, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
