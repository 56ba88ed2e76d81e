"""Shifts of traffic for people, in lines or as a bar that fills, and as JSON for programs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any, TextIO

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from slotmesh.cli.saying import PrintableConsole
from slotmesh.cli.snapshot import ShiftStatus, StepCalls
from slotmesh.units import format_duration


def shift_lines(shift: ShiftStatus) -> Iterator[str]:
    """How it is; while it is under way, what it is judged by, too."""
    phase = shift.phase.lower().replace("_", " ")
    at = "" if shift.end_time is None else shift.end_time.astimezone().strftime(" at %H:%M:%S")
    if shift.is_waiting:
        yield waiting_line(shift)
        return
    line = f"shift to {_weights(shift.to_weights)}: {phase}{at}, step {shift.step_number} of {shift.steps}"
    yield f"{line}: {shift.reason}" if shift.reason else f"{line}, {_terms(shift)}"
    if shift.is_under_way:
        yield from (f"  {_calls(it)}" for it in shift.figures)
        if shift.waits_for:
            yield f"  the next step waits: {shift.waits_for}"


def waiting_line(shift: ShiftStatus) -> str:
    """What traffic waits for that moves when rollouts are complete."""
    why = shift.waits_for or f"the rollout of {', '.join(shift.awaited_backends)}"
    return f"traffic of {shift.endpoint} moves to {_weights(shift.to_weights)} later; it waits for {why}"


def shift_as_json(shift: ShiftStatus) -> dict[str, Any]:
    """The same, as values of JSON. Times are ISO 8601 in UTC."""
    return {
        "endpoint": shift.endpoint,
        "phase": shift.phase,
        "from": dict(shift.from_weights),
        "to": dict(shift.to_weights),
        "step_number": shift.step_number,
        "steps": shift.steps,
        "every_s": shift.every_s,
        "guards": [*shift.guards],
        "min_calls": shift.min_calls,
        "start_time": shift.start_time.isoformat(),
        "step_time": shift.step_time.isoformat(),
        "end_time": None if shift.end_time is None else shift.end_time.isoformat(),
        "who": shift.who,
        "reason": shift.reason,
        "waits_for": shift.waits_for,
        "awaited_backends": [*shift.awaited_backends],
        "figures": {
            it.backend: {"calls": it.calls, "failed": it.failed, "unanswered": it.unanswered, "p99_s": it.p99_s}
            for it in shift.figures
            if not it.is_shadow
        },
        "shadow_figures": {
            it.backend: {"copies": it.calls, "failed": it.failed, "unanswered": it.unanswered, "p99_s": it.p99_s}
            for it in shift.figures
            if it.is_shadow
        },
    }


class ShiftBar:
    """A bar that fills step by step, on a terminal; nothing elsewhere."""

    def __init__(self, out: TextIO) -> None:
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[left]}", markup=False),
        )
        self._bar = Progress(
            *columns, TimeElapsedColumn(), console=PrintableConsole(file=out), disable=not out.isatty(), transient=True
        )
        self._task: TaskID | None = None

    def __enter__(self) -> ShiftBar:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def show(self, shift: ShiftStatus) -> None:
        if self._task is None:
            self._task = self._bar.add_task(shift.endpoint, total=shift.steps, left="")
        left = shift.waits_for or "; ".join(map(_calls, shift.figures))
        self._bar.update(self._task, completed=shift.step_number, total=shift.steps, left=left)


def _terms(shift: ShiftStatus) -> str:
    every = f"every {format_duration(timedelta(seconds=shift.every_s))}"
    if not shift.guards:
        return f"{every}, without guards"
    return f"{every}, guards {' '.join(shift.guards)} ({shift.min_calls} calls a step at least)"


def _calls(it: StepCalls) -> str:
    what = "copies of calls" if it.is_shadow else "calls"
    line = f"{it.backend}: {it.calls} {what} in this step, {it.failed} failed, {it.unanswered} not answered"
    return line if it.p99_s is None else f"{line}, p99 {format_duration(timedelta(seconds=it.p99_s))} at most"


def _weights(weights: Mapping[str, float]) -> str:
    return " ".join(f"{name}={weight:.6g}" for name, weight in sorted(weights.items()))
