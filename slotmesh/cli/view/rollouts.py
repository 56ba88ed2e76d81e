"""Rollouts for people, in a line each or as a bar that fills, and as JSON for programs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any, TextIO

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from slotmesh.cli.console import PrintableConsole
from slotmesh.cli.snapshot import RolloutStatus

COMPLETE = "COMPLETE"


def rollout_lines(rollouts: Iterable[RolloutStatus]) -> Iterator[str]:
    """A line for each rollout that is not simply complete."""
    for rollout in rollouts:
        if rollout.phase != COMPLETE or rollout.taken_back or rollout.is_paused:
            yield rollout_line(rollout)


def rollout_line(rollout: RolloutStatus) -> str:
    """How it is, and what is wrong."""
    what = f"{rollout.handler} {rollout.version}".strip()
    line = f"rollout of {rollout.backend} to {what}: {rollout.phase.lower().replace('_', ' ')},"
    line += f" {rollout.available} of {rollout.wanted} new replicas ready"
    if rollout.outdated:
        line += f", {rollout.outdated} old left"
    if rollout.trouble:
        line += f"; {rollout.trouble}"
    if rollout.taken_back:
        at = "" if rollout.taken_back_time is None else rollout.taken_back_time.astimezone().strftime(" at %H:%M:%S")
        line += f"; the one before was taken back{at}: {rollout.taken_back}"
    if rollout.is_paused:
        held = "paused: the next change" if rollout.phase == COMPLETE else "it"
        line += f"; {held} waits for {resume_command(rollout.backend)}"
    return line


def resume_command(backend: str) -> str:
    """What ends the pause of a backend's rollouts."""
    return f"`slotmesh rollout resume {backend}`"


def rollout_as_json(rollout: RolloutStatus) -> dict[str, Any]:
    """The same, as values of JSON. Times are ISO 8601 in UTC."""
    return {
        "backend": rollout.backend,
        "phase": rollout.phase,
        "handler": rollout.handler,
        "version": rollout.version,
        "wanted": rollout.wanted,
        "current": rollout.current,
        "available": rollout.available,
        "outdated": rollout.outdated,
        "start_time": _iso(rollout.start_time),
        "trouble": rollout.trouble,
        "taken_back": rollout.taken_back,
        "taken_back_time": _iso(rollout.taken_back_time),
        "paused": rollout.is_paused,
    }


class RolloutBar:
    """A bar that fills as new replicas get ready, on a terminal; nothing elsewhere."""

    def __init__(self, out: TextIO) -> None:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[left]}"),
        )
        self._bar = Progress(
            *columns, TimeElapsedColumn(), console=PrintableConsole(file=out), disable=not out.isatty(), transient=True
        )
        self._task: TaskID | None = None

    def __enter__(self) -> RolloutBar:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def show(self, rollout: RolloutStatus) -> None:
        if self._task is None:
            self._task = self._bar.add_task(rollout.backend, total=rollout.wanted, left="")
        left = f"{rollout.phase.lower()}, {rollout.outdated} old left"
        self._bar.update(self._task, completed=rollout.available, total=rollout.wanted, left=left)


def _iso(time: datetime | None) -> str | None:
    return None if time is None else time.isoformat()
