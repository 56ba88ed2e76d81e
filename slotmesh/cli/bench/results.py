"""The result of a bench as a document, its histogram, and how it compares with an earlier one. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from slotmesh.cli.bench.loops import BenchRun

FORMAT: Final = "slotmesh-bench/1"
ROWS: Final = 16
"""Of the histogram that people see, at most."""
_BAR_CELLS: Final = 40
COMPARED: Final = ("calls_per_s", "p50_ms", "p90_ms", "p99_ms", "p99_9_ms", "max_ms")
_LESS_IS_BETTER: Final = "_ms"


def result_document(run: BenchRun, settings: Mapping[str, Any]) -> dict[str, Any]:
    """As values of JSON. `settings`: what was called, and how."""
    return {
        "format": FORMAT,
        **settings,
        **run.tally.document(run.elapsed_s),
        "unstarted": run.unstarted,
        "histogram_ms": [[round(bound * 1e3, 4), count] for bound, count in run.tally.well.buckets()],
    }


def result_lines(run: BenchRun) -> Iterator[str]:
    """For people."""
    yield from run.tally.lines(run.elapsed_s)
    if run.unstarted:
        yield f"{run.unstarted:,} calls were due and not begun: as many as may be were under way"
    yield from _histogram(run)


def _histogram(run: BenchRun) -> Iterator[str]:
    """Buckets joined until few enough are left."""
    buckets = [*run.tally.well.buckets()]
    if not buckets:
        return
    size = -(-len(buckets) // ROWS)
    joined = [buckets[at : at + size] for at in range(0, len(buckets), size)]
    rows = [(part[-1][0], sum(count for _, count in part)) for part in joined]
    most = max(count for _, count in rows)
    for bound, count in rows:
        yield f"≤ {bound * 1e3:>9,.3g} ms {'█' * round(_BAR_CELLS * count / most):<{_BAR_CELLS}} {count:,}"


class NotComparable(ValueError):
    """The file has no result of a bench; the message says what it has."""


def comparison_lines(now: Mapping[str, Any], before: object) -> Iterator[str]:
    """What is better or worse than in an earlier result. Raises NotComparable."""
    if not isinstance(before, Mapping) or before.get("format") != FORMAT:
        raise NotComparable(f"is no result of `slotmesh bench --save` (format {FORMAT})")
    for name in ("endpoint", "method", "in_flight", "rate", "ordered"):
        if now.get(name) != before.get(name):
            yield f"{name} differs: {before.get(name)} before, {now.get(name)} now"
    for name in COMPARED:
        one, another = before.get(name), now.get(name)
        if isinstance(one, int | float) and isinstance(another, int | float) and one > 0:
            change = another / one - 1
            is_worse = change > 0 if name.endswith(_LESS_IS_BETTER) else change < 0
            verdict = "" if abs(change) < 0.005 else " worse" if is_worse else " better"
            yield f"{name:<12} {one:>12,.3f} → {another:>12,.3f}  {change:+.1%}{verdict}"
    failed = [sum(it.get("failed", {}).values()) for it in (before, now)]
    if any(failed):
        yield f"{'failed':<12} {failed[0]:>12,} → {failed[1]:>12,}"
