"""What the simulation of frames says, as a table: service times down, sizes of frames and queue times across."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from simulation.frames.mesh import FrameFigures, FrameMesh
from simulation.frames.settings import FramesSettings

SERVICES_S: Final = (5e-6, 20e-6, 100e-6, 500e-6, 2e-3, 10e-3, 100e-3)
REPLICAS: Final = (1, 8)
IN_FLIGHT: Final = (8, 64, 512)
_HEADINGS: Final = (
    *("service", "replicas", "in flight", "calls/s"),
    *("to router", "to replica", "from replica", "to client", "router a call", "queue p50", "queue p99"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FramesOutcome:
    """One mesh, and what it came to."""

    settings: FramesSettings
    figures: FrameFigures


def configurations(calls: int) -> Iterator[FramesSettings]:
    """A mesh for each service time, number of replicas, and number of calls in flight. It begins in frames of one."""
    for service_s in SERVICES_S:
        # What takes long needs no more calls to be told: there are that many rounds of them all the same.
        few = max(1, round(calls * min(1.0, 1e-3 / service_s)))
        for replicas in REPLICAS:
            for in_flight in IN_FLIGHT:
                yield FramesSettings(
                    replicas=replicas,
                    service_s=service_s,
                    in_flight=in_flight,
                    first_frames=(1,) * in_flight,
                    cores=0,
                    calls=max(few, 4 * in_flight),
                    warm_up=max(few // 2, 4 * in_flight),
                )


def simulate(calls: int, tell: Callable[[str], None]) -> list[FramesOutcome]:
    """`tell` hears what comes next."""
    outcomes = []
    for settings in configurations(calls):
        tell(
            f"frames: service {_time(settings.service_s)}, {settings.replicas} replicas, {settings.in_flight} in flight"
        )
        outcomes.append(FramesOutcome(settings=settings, figures=FrameMesh(settings).run()))
    tell("")
    return outcomes


def table(outcomes: Sequence[FramesOutcome]) -> str:
    """One line a mesh, aligned."""
    rows: list[Sequence[str]] = [_HEADINGS, *map(_row, outcomes)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADINGS))]
    lines = ["  ".join(f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True)) for row in rows]
    return "\n".join(lines)


CONDITIONS: Final = (
    "Calls in a frame, hop by hop, and time from making a call to the start of its service. One client, one router, "
    "each process with a core of its own; a message costs 125 µs at each end. All calls begin in frames of one."
)


def document(outcomes: Sequence[FramesOutcome]) -> list[dict[str, Any]]:
    """Everything the table says, in full."""
    return [
        {
            "service_s": each.settings.service_s,
            "replicas": each.settings.replicas,
            "in_flight": each.settings.in_flight,
            **asdict(each.figures),
        }
        for each in outcomes
    ]


def progress(line: str) -> None:
    """One line on stderr, written over; nothing where that is no terminal."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{line}")
        sys.stderr.flush()


def _row(outcome: FramesOutcome) -> Sequence[str]:
    settings, figures = outcome.settings, outcome.figures
    return (
        _time(settings.service_s),
        str(settings.replicas),
        str(settings.in_flight),
        f"{figures.calls_per_s:,.0f}",
        f"{figures.up_to_router:.1f}",
        f"{figures.out_to_replica:.1f}",
        f"{figures.back_to_router:.1f}",
        f"{figures.down_to_client:.1f}",
        _time(figures.router_s),
        _time(figures.queue_p50_s),
        _time(figures.queue_p99_s),
    )


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:.4g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} µs"
