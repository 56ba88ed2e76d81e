"""Notices of shifts, as a commit has changed them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from controller_service.core.notices import EventKind, Notice
from controller_service.core.shifting.record import ShiftPhase, ShiftRecord

_KINDS: Final = {
    ShiftPhase.SHIFTING: EventKind.TRAFFIC_SHIFT_STEPPED,
    ShiftPhase.COMPLETE: EventKind.TRAFFIC_SHIFT_COMPLETE,
    ShiftPhase.TAKEN_BACK: EventKind.TRAFFIC_SHIFT_TAKEN_BACK,
    ShiftPhase.STOPPED: EventKind.TRAFFIC_SHIFT_ENDED,
    ShiftPhase.OVERTAKEN: EventKind.TRAFFIC_SHIFT_ENDED,
}


def notices_of_shifts(
    before: Mapping[str, ShiftRecord], after: Mapping[str, ShiftRecord], *, revision: int
) -> Iterator[Notice]:
    """The notices of shifts that began, took a step or ended. `revision` is that of the configuration."""
    if before is after:
        return
    for name, shift in after.items():
        if before.get(name) is not shift:
            yield notice_of(shift, revision)
    for name, shift in before.items():
        if name not in after and shift.is_under_way:
            message = "the shift has ended: the endpoint was deleted"
            yield Notice(kind=EventKind.TRAFFIC_SHIFT_ENDED, subject=f"endpoint/{name}", message=message)


def notice_of(shift: ShiftRecord, revision: int) -> Notice:
    """What a shift has come to, at a revision of the configuration."""
    kind = _KINDS[shift.phase]
    if shift.is_under_way:
        kind = EventKind.TRAFFIC_SHIFT_STARTED if shift.number <= 1 else EventKind.TRAFFIC_SHIFT_STEPPED
        weights = ", ".join(f"{name}={weight:g}" for name, weight in shift.weights(max(1, shift.number)).items())
        message = f"step {shift.number} of {shift.steps}: {weights}"
        if shift.is_waiting:
            message = f"{weights} after the rollout of {', '.join(sorted(shift.awaits))}"
    elif shift.phase is ShiftPhase.TAKEN_BACK:
        weights = ", ".join(f"{name}={weight:g}" for name, weight in shift.before.items())
        message = f"{shift.why}; {weights} {'again' if shift.number else 'stays'}"
    else:
        message = shift.why
    return Notice(kind=kind, subject=f"endpoint/{shift.endpoint}", message=f"{message}, at revision {revision}")
