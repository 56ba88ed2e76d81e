"""A run, drawn: calls, outcomes by reason, and how long no outcome came after each fault. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from tests.history.model import Fault, History

COLUMNS: Final = 100
"""Width of the drawn time line, characters."""
_LEVELS: Final = " ▁▂▃▄▅▆▇█"


@dataclass(frozen=True, slots=True, kw_only=True)
class Silence:
    """The longest stretch without a result after a fault, until the next one."""

    fault: Fault
    everybody_s: float
    """Nobody got a result."""
    worst_client_s: float
    """The client that was worst off got none."""


def silences(history: History) -> list[Silence]:
    """One for each fault. A silence that a fault falls into is told at that fault, from the fault on."""
    clients = {call.tag: call.client for call in history.calls}
    results = sorted((it.at, clients.get(it.tag, "")) for it in history.outcomes if it.is_result)
    if not results or not history.faults:
        return []
    by_client: dict[str, list[float]] = {}
    for at, client in results:
        by_client.setdefault(client, []).append(at)
    everybody = [at for at, _ in results]
    faults = sorted(history.faults, key=lambda fault: fault.at)
    ends = [*(fault.at for fault in faults[1:]), everybody[-1]]
    return [
        Silence(
            fault=fault,
            everybody_s=_longest(everybody, fault.at, until),
            worst_client_s=max(_longest(times, fault.at, until) for times in by_client.values()),
        )
        for fault, until in zip(faults, ends, strict=True)
    ]


def summary(history: History, title: str = "") -> str:
    """Lines for a person."""
    heard = Counter(str(outcome) for outcome in history.outcomes)
    executed = Counter(it.tag for it in history.executions)
    again = sum(count > 1 for count in executed.values())
    lines = [title] if title else []
    lines.append(
        f"{len(history.calls)} calls, {len(history.outcomes)} outcomes, {len(executed)} executed, {again} again"
    )
    lines += [f"  {count:>8}  {name}" for name, count in heard.most_common()]
    lines += _drawn(history)
    lines += [
        f"  {history.since_start(it.fault.at):>10}  {it.fault.what}: no result for {it.everybody_s:.3f} s, "
        f"one client {it.worst_client_s:.3f} s ({it.fault.seen or 'not seen'})"
        for it in silences(history)
    ]
    return "\n".join(lines)


def _longest(times: Sequence[float], begin: float, end: float) -> float:
    """The longest distance of neighbours among `begin`, the times from there to `end`, and the first one after it."""
    first, last = bisect_right(times, begin), bisect_right(times, end)
    points = [begin, *times[first:last], *(times[last : last + 1] or [end])]
    return max((min(after, end) - before for before, after in pairwise(points)), default=0.0)


def _drawn(history: History) -> list[str]:
    """Outcomes over time, and the faults below."""
    times = [outcome.at for outcome in history.outcomes]
    if not times:
        return []
    begin, end = history.began_at, max(times)
    step = max((end - begin) / COLUMNS, 1e-9)

    def column(at: float) -> int:
        return min(max(int((at - begin) / step), 0), COLUMNS - 1)

    counts = Counter(map(column, times))
    most = max(counts.values())
    bars = "".join(_LEVELS[-(-counts[at] * (len(_LEVELS) - 1) // most)] for at in range(COLUMNS))
    marks = [" "] * COLUMNS
    for fault in history.faults:
        for at in range(column(fault.at), column(fault.cleared_at) + 1):
            marks[at] = "-"
        marks[column(fault.at)] = "^"
    return [f"  |{bars}| up to {most} in {step * 1000:.0f} ms", f"  |{''.join(marks)}| faults"]
