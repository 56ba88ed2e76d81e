"""The outcome as a table for people and as JSON for scripts."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import grpc

from benchmarks.catalogue import CatalogueEntry
from benchmarks.statistics import Summary
from slotmesh.version import VERSION

_HEADINGS = ("", "calls/s", "p50", "p99", "× bare", "expected")


def table(entries: Sequence[CatalogueEntry], summaries: Mapping[str, Summary]) -> str:
    """One line a workload, aligned."""
    rows = [_HEADINGS, *(_row(entry, summaries[entry.name]) for entry in entries)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADINGS))]
    return "\n".join(_aligned(row, widths) for row in rows)


def provenance() -> dict[str, Any]:
    """What it was measured on."""
    return {
        "versions": {"slotmesh": VERSION, "grpcio": grpc.__version__, "python": platform.python_version()},
        "machine": {"system": platform.system(), "processor": platform.machine(), "cores": os.cpu_count()},
    }


def document(
    entries: Sequence[CatalogueEntry], summaries: Mapping[str, Summary], settings: Mapping[str, Any]
) -> dict[str, Any]:
    """Everything the table says. Times in seconds."""
    return {
        "settings": dict(settings),
        "results": [
            {
                "name": entry.name,
                "title": entry.title,
                **{name: _rounded(value) for name, value in asdict(summaries[entry.name]).items()},
                "expected_ratio": entry.target,
                "as_expected": None if entry.target is None else summaries[entry.name].ratio >= entry.target,
            }
            for entry in entries
        ],
    }


def _row(entry: CatalogueEntry, summary: Summary) -> tuple[str, ...]:
    return (
        entry.title,
        f"{summary.calls_per_s:,.0f}",
        duration(summary.p50_s),
        duration(summary.p99_s),
        f"{summary.ratio:.2f}" if summary.ratio < 10 else f"{summary.ratio:.0f}",
        "" if entry.target is None else f"≥ {entry.target:g} {'✓' if summary.ratio >= entry.target else '✗'}",
    )


def duration(seconds: float) -> str:
    """Milliseconds, with as many digits as mean something."""
    milliseconds = seconds * 1000
    return f"{milliseconds:.2f} ms" if milliseconds < 10 else f"{milliseconds:.0f} ms"


def _aligned(row: Sequence[str], widths: Sequence[int]) -> str:
    name, *figures = row
    cells = [f"{figure:>{width}}" for figure, width in zip(figures, widths[1:], strict=True)]
    return f"{name:<{widths[0]}}  {'  '.join(cells)}".rstrip()


def _rounded(value: float) -> float:
    """Six significant digits: more are noise."""
    return float(f"{value:.6g}")
