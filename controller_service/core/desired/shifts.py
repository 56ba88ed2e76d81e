"""A shift of an endpoint's traffic: what was asked for, and how far it is.

Invariants: immutable. While it is under way, the endpoint's weights are those of its present step: another change of
them ends it, in the same transaction (`overtaken`). A shift that waits for rollouts is in step 0, in which the weights
are those before it; its only step moves all of the traffic.
Owner: the store, by `Desired`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import Enum
from types import MappingProxyType
from typing import Final

from controller_service.core.event_log import EventKind, Notice
from slotmesh.spec.model import Endpoint, TrafficPolicy
from slotmesh.units import format_duration

SAME: Final = 1e-9
"""Weights that differ by less are the same."""
NO_ROLLOUTS: Final[Mapping[str, str]] = MappingProxyType({})
_WAITING: Final = "waiting/"


def waiting_change_id(began_s: float) -> str:
    """Names a change whose traffic waits for rollouts: all of its revisions are parts of it, of whatever endpoint."""
    return f"{_WAITING}{began_s!r}"


def is_waiting_change(change_id: str) -> bool:
    """Whether a change is one whose traffic waited for rollouts."""
    return change_id.startswith(_WAITING)


class GuardFigure(Enum):
    """What guards look at. The values are those of `slotmesh.v1.ShiftFigure`."""

    ERROR_RATE = 1
    """The share of calls that failed or were not answered."""
    P99 = 2
    """The time within which 99 of 100 calls ended well, seconds."""


class ShiftPhase(Enum):
    """Where a shift is. The values are those of `slotmesh.v1.ShiftPhase`."""

    SHIFTING = 1
    COMPLETE = 2
    ROLLED_BACK = 3
    """A guard has tripped, or a rollout that it waited for was rolled back."""
    STOPPED = 4
    """An operator has ended it."""
    OVERTAKEN = 5
    """The weights were changed by another request meanwhile."""


@dataclass(frozen=True, slots=True)
class Guard:
    """A figure, and the most that it may be."""

    figure: GuardFigure
    limit: float
    """A share, or seconds."""
    shadow: str = ""
    """The shadow whose copies of calls it looks at; empty: the backends whose weight rises."""

    def __str__(self) -> str:
        """As operators write it: `p99=200ms`, or `dark:p99=200ms`."""
        limit = f"{self.limit:g}"
        if self.figure is GuardFigure.P99:
            limit = format_duration(timedelta(seconds=self.limit))
        return f"{self.shadow}{':' if self.shadow else ''}{self.figure.name.lower()}={limit}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShiftRecord:
    """The newest shift of an endpoint."""

    endpoint: str
    before: Mapping[str, float]
    """The weights that it goes back to, as they were."""
    target: Mapping[str, float]
    """The weights of its last step; none is 0."""
    step: float
    """By how much the weight that changes most changes in one step."""
    every_s: float
    guards: tuple[Guard, ...]
    min_calls: int
    number: int = 1
    """The step that it is in, or was in when it ended; from 1, and 0 while it waits for rollouts."""
    since_s: float = 0.0
    """When that step began, seconds since 1970."""
    began_s: float = 0.0
    """When the first one did."""
    who: str = ""
    """Who asked for it."""
    phase: ShiftPhase = ShiftPhase.SHIFTING
    why: str = ""
    """Why it ended."""
    ended_s: float = 0.0
    """When it ended, seconds since 1970; 0 before."""
    awaits: Mapping[str, str] = field(default_factory=lambda: NO_ROLLOUTS)
    """Backends whose rollouts it waits for, with the template that each of them rolls out. Empty once it has ended."""
    deletes: tuple[str, ...] = ()
    """Backends that are deleted once the traffic has moved. Empty once it has ended."""

    @property
    def is_under_way(self) -> bool:
        return self.phase is ShiftPhase.SHIFTING

    @property
    def is_waiting(self) -> bool:
        """Whether it waits for rollouts, and no weight has changed yet."""
        return self.is_under_way and bool(self.awaits)

    @property
    def change_id(self) -> str:
        """Names the shift among all changes: each of its revisions is a part of it."""
        return waiting_change_id(self.began_s) if self.awaits else f"shift/{self.endpoint}/{self.began_s!r}"

    @property
    def steps(self) -> int:
        """How many there are."""
        return max(1, math.ceil(self._distance / self.step - SAME))

    @property
    def backends(self) -> list[str]:
        """All that have a weight at any time, by name."""
        return sorted({**self.before, **self.target})

    @property
    def watched_shadows(self) -> tuple[str, ...]:
        """Shadows that guards look at."""
        return tuple(dict.fromkeys(it.shadow for it in self.guards if it.shadow))

    @property
    def rising(self) -> list[str]:
        """Those that get more: they are judged. By name."""
        return [it for it in self.backends if self.target.get(it, 0.0) - self.before.get(it, 0.0) > SAME]

    def weights(self, number: int) -> dict[str, float]:
        """The weights in a step: all backends, so that none that it may go back to can be deleted meanwhile."""
        if number >= self.steps:
            return {it: self.target.get(it, 0.0) for it in self.backends}
        share = number * self.step / self._distance
        between = {
            it: (1.0 - share) * self.before.get(it, 0.0) + share * self.target.get(it, 0.0) for it in self.backends
        }
        return {name: round(weight, 12) for name, weight in between.items()}

    @property
    def _distance(self) -> float:
        """By how much the weight that changes most changes."""
        return max(abs(self.target.get(it, 0.0) - self.before.get(it, 0.0)) for it in self.backends)


def overtaken(
    shifts: Mapping[str, ShiftRecord],
    before: Mapping[str, Endpoint],
    changed: Iterable[Endpoint],
    *,
    own: Collection[str],
    who: str,
    time_s: float,
) -> dict[str, ShiftRecord]:
    """Shifts that end since another change sets the weights of their endpoints; `own` changes are those of shifts."""
    ended: dict[str, ShiftRecord] = {}
    for endpoint in changed:
        shift, old = shifts.get(endpoint.name), before.get(endpoint.name)
        if shift is None or not shift.is_under_way or endpoint.name in own:
            continue
        weights = None if endpoint.traffic is None else endpoint.traffic.weights
        if old is None or old.traffic is None or weights != old.traffic.weights:
            ended[endpoint.name] = overtaken_by(shift, who=who, time_s=time_s)
    return ended


def overtaken_by(shift: ShiftRecord, *, who: str, time_s: float) -> ShiftRecord:
    """The shift, ended by another change of the traffic."""
    at = "before its first step" if shift.is_waiting else f"in step {shift.number} of {shift.steps}"
    why = f"its traffic was changed by {who or 'another request'} {at}"
    return over(shift, ShiftPhase.OVERTAKEN, why, time_s)


def over(shift: ShiftRecord, phase: ShiftPhase, why: str, time_s: float) -> ShiftRecord:
    """The shift, ended: it waits for nothing any more."""
    return replace(shift, phase=phase, why=why, ended_s=time_s, awaits=NO_ROLLOUTS, deletes=())


def intended_endpoints(endpoints: Mapping[str, Endpoint], shifts: Mapping[str, ShiftRecord]) -> Mapping[str, Endpoint]:
    """Endpoints with the traffic that was asked for: of those that wait for rollouts, the weights afterwards."""
    waiting = {name: it for name, it in shifts.items() if it.is_waiting and name in endpoints}
    if not waiting:
        return endpoints
    return {**endpoints, **{name: _with_weights(endpoints[name], it.target) for name, it in waiting.items()}}


def _with_weights(endpoint: Endpoint, weights: Mapping[str, float]) -> Endpoint:
    policy = endpoint.traffic or TrafficPolicy(weights={})
    return replace(endpoint, traffic=replace(policy, weights=weights))


_KINDS: Final = {
    ShiftPhase.SHIFTING: EventKind.TRAFFIC_SHIFT_STEPPED,
    ShiftPhase.COMPLETE: EventKind.TRAFFIC_SHIFT_COMPLETE,
    ShiftPhase.ROLLED_BACK: EventKind.TRAFFIC_SHIFT_ROLLED_BACK,
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
    elif shift.phase is ShiftPhase.ROLLED_BACK:
        weights = ", ".join(f"{name}={weight:g}" for name, weight in shift.before.items())
        message = f"{shift.why}; {weights} {'again' if shift.number else 'stays'}"
    else:
        message = shift.why
    return Notice(kind=kind, subject=f"endpoint/{shift.endpoint}", message=f"{message}, at revision {revision}")
