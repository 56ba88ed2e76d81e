"""Where a benchmark is, on stderr: its results go to stdout."""

from __future__ import annotations

import sys


def show(line: str) -> None:
    """On a terminal one line that is written over, empty to wipe it; elsewhere nothing."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{line}")
        sys.stderr.flush()


def begin(title: str) -> None:
    """A benchmark starts that takes a while."""
    if not sys.stderr.isatty():
        sys.stderr.write(f"{title} …\n")
        sys.stderr.flush()
    show(f"{title} …")
