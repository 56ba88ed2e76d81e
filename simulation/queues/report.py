"""The outcome as a table for people and as JSON for scripts. Times are in mean service times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from math import isfinite
from typing import Any

from simulation.queues.expected import Bounds, bounds
from simulation.queues.figures import Figures
from simulation.queues.settings import QueuesSettings
from simulation.queues.theory import Reference, references

_HEADINGS = (
    "slots",
    "",
    "p50",
    "p99",
    "max",
    "refusals a call",
    "capacity frames a call",
    "idle while queued",
    "events/s",
    "expected",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuesOutcome:
    """One configuration, and what it came to."""

    settings: QueuesSettings
    figures: Figures
    seconds: float
    """Wall time."""
    links: int = 0
    """Of a router, at most."""

    @property
    def bounds(self) -> Bounds | None:
        """What has to hold, if anything."""
        return bounds(self.settings)

    @property
    def is_as_expected(self) -> bool:
        """Whether all that has to hold does."""
        return self.bounds is None or self.bounds.hold(self.figures)


def table(outcomes: Sequence[QueuesOutcome]) -> str:
    """One line a configuration, aligned; after the last one of a number of slots what theory says of it."""
    rows: list[Sequence[str]] = [_HEADINGS]
    for index, outcome in enumerate(outcomes):
        rows.append(_row(outcome))
        is_last = index + 1 == len(outcomes)
        if is_last or outcomes[index + 1].settings.slots != outcome.settings.slots:
            rows += [_reference_row(outcome.settings, reference) for reference in references(outcome.settings)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADINGS))]
    return "\n".join(_aligned(row, widths) for row in rows)


def conditions(settings: QueuesSettings) -> str:
    """What all lines of a table have in common."""
    return (
        f"{settings.replicas:,} replicas, {settings.routers} routers, {settings.load:.0%} load, links of "
        f"{settings.link_delay:g} one way, capacity gaps of {settings.capacity_gap:g}, {settings.calls:,} calls "
        f"{'one by one' if settings.batch == 1 else f'in batches of {settings.batch}'}, seed {settings.seed}. "
        "Times in mean service times."
    )


def document(outcomes: Sequence[QueuesOutcome]) -> dict[str, Any]:
    """Everything the table says, in full."""
    return {
        "results": [
            {
                "settings": asdict(outcome.settings, dict_factory=_plain),
                "figures": asdict(outcome.figures),
                "references": [asdict(reference, dict_factory=_plain) for reference in references(outcome.settings)],
                "wall_s": round(outcome.seconds, 3),
                "as_expected": outcome.is_as_expected if outcome.bounds else None,
            }
            for outcome in outcomes
        ]
    }


def _row(outcome: QueuesOutcome) -> Sequence[str]:
    figures, bounds = outcome.figures, outcome.bounds
    return (
        str(outcome.settings.slots),
        outcome.settings.balancer,
        f"{figures.p50:.3f}",
        f"{figures.p99:.3f}",
        f"{figures.longest:.3f}",
        f"{figures.refusals:.2f}",
        f"{figures.pushes:.2f}",
        f"{figures.idle_while_queued:.1%}",
        f"{figures.events / outcome.seconds:,.0f}",
        "" if bounds is None else f"{bounds} {'✓' if outcome.is_as_expected else '✗'}",
    )


def _reference_row(settings: QueuesSettings, reference: Reference) -> Sequence[str]:
    return (
        str(settings.slots),
        f"theory: {reference.name}",
        f"{reference.p50:.3f}",
        f"{reference.p99:.3f}",
        *[""] * (len(_HEADINGS) - 4),
    )


def _aligned(row: Sequence[str], widths: Sequence[int]) -> str:
    slots, name, *figures, expected = row
    cells = [f"{figure:>{width}}" for figure, width in zip(figures, widths[2:-1], strict=True)]
    return "  ".join([f"{slots:>{widths[0]}}", f"{name:<{widths[1]}}", *cells, expected]).rstrip()


def _plain(fields: list[tuple[str, Any]]) -> dict[str, Any]:
    """JSON has no enums and no infinity."""
    return {name: _plain_value(value) for name, value in fields}


def _plain_value(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.name.lower()
    return None if isinstance(value, float) and not isfinite(value) else value
