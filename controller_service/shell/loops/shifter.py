"""Carries shifts of traffic on: steps, their end, and the way back.

Purpose: looks each second at what routers have reported, asks the core, and commits what follows as operators' changes
are: written before announced, with a revision, planned anew where another change was faster.
Invariants: one task moves shifts; operators' requests go through the store, are answered after the store has them, and
win where they were faster. A
store that cannot write, or a look that fails, is tried again with the next look. Figures are of this controller's life.
Owner: one task; servicers call `begin`, `undo` and `known_of`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from controller_service.core.desired.planning import ChangeTerms, Plan
from controller_service.core.desired.revisions import ChangeOrigin
from controller_service.core.desired.rollback import restoring
from controller_service.core.desired.shifts import ShiftRecord
from controller_service.core.desired.state import Desired
from controller_service.core.loads import CallEnds
from controller_service.core.reconciling.endpoints import is_ready
from controller_service.core.reconciling.shift_planning import (
    NO_PLAN,
    RequestedShift,
    plan_end,
    plan_move,
    plan_shift,
    rollouts_of,
)
from controller_service.core.reconciling.shift_steps import STAY, CallFlow, ShiftLook, ShiftMove, StepFigures, follow
from controller_service.shell.changes.configurator import Configurator, MakePlan, PlannedChange
from controller_service.shell.changes.requests import known_endpoint
from controller_service.shell.leadership import NewerMembers
from controller_service.shell.mesh_state import MeshState
from controller_service.store.protocol import Store
from slotmesh.errors import SlotmeshError
from slotmesh.logs import get_logger
from slotmesh.runtime.backoff import FailureReports

LOOK_EVERY_S: Final = 1.0
SETTLED_AFTER_S: Final = 15.0
"""For this time after the start of a controller routers may not have attached yet: it is unknown whether calls flow."""
WHO: Final = "controller"
EndsByName: TypeAlias = Mapping[str, CallEnds]

_log = get_logger(__name__)


@dataclass(slots=True)
class WatchedShift:
    """The figures of a shift in progress, as reported to this controller."""

    began_s: float
    number: int
    due_at: float
    """When its step has lasted for long enough, seconds (monotonic): the wall clock may jump."""
    figures: StepFigures
    shadows: StepFigures
    """Of copies of calls, for shadows that guards look at."""
    waits_for: str = ""


class Shifter:
    """Moves the shifts that are under way, and carries out what operators request of shifts."""

    def __init__(self, configurator: Configurator, store: Store, state: MeshState, newer: NewerMembers) -> None:
        """None moves unless `newer` lets this controller decide."""
        self._newer = newer
        self._configurator = configurator
        self._store = store
        self._state = state
        self._watched: dict[str, WatchedShift] = {}
        self._started_at = state.clock.now()
        self._failures = FailureReports()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(LOOK_EVERY_S)

    async def look(self) -> None:
        """Looks at every shift, once."""
        if not self._newer.decides:
            return
        self._forget_ended()
        for name, shift in self._store.read().shifts.items():
            if shift.is_under_way:
                try:
                    await self._look_at(name)
                except SlotmeshError as failure:
                    self._failed(name, failure)

    def _failed(self, name: str, failure: SlotmeshError) -> None:
        """A failure that repeats is logged less and less often."""
        if (due := self._failures.take(failure, self._state.clock.now())) is not None:
            text = "a shift could not be carried on; it is tried again"
            _log.warning(text, endpoint=name, why=str(failure), times_before=due.times_before)

    async def begin(
        self, requested: RequestedShift, terms: ChangeTerms, *, requires_ready: bool = False
    ) -> PlannedChange:
        """The first step of a shift. Raises EndpointNotFound, InvalidSpec, RevisionConflict.

        `requires_ready`: it is refused if a backend that gets more calls has no ready replica.
        """
        who, time_s = terms.origin.who, self._state.clock.time_of_day()

        def plan(desired: Desired) -> Plan:
            known_endpoint(desired, requested.endpoint)
            planned = plan_shift(desired, requested, who=who, time_s=time_s)
            if requires_ready:
                self._configurator.require_ready(desired, requested.endpoint, planned.change.put_shifts[0].rising)
            return planned

        return await self._change(plan, terms)

    async def undo(self, name: str, terms: ChangeTerms) -> PlannedChange:
        """Ends a shift, with the weights before it. Raises EndpointNotFound, InvalidSpec, RevisionConflict."""
        who, time_s = terms.origin.who, self._state.clock.time_of_day()

        def plan(desired: Desired) -> Plan:
            known_endpoint(desired, name)
            return restoring(desired, plan_end(desired, name, goes_back=True, who=who, time_s=time_s))

        return await self._change(plan, terms)

    async def _change(self, plan: MakePlan, terms: ChangeTerms) -> PlannedChange:
        changed = await self._configurator.change(plan, terms)
        if not terms.validate_only:
            self._follow(changed.plan.change.put_shifts[0])
        return changed

    def known_of(self, shift: ShiftRecord) -> tuple[EndsByName, EndsByName, str]:
        """The figures of its present step, by backend and by shadow, and what its next step waits for."""
        watched = self._watched.get(shift.endpoint)
        if watched is None or (watched.began_s, watched.number) != (shift.began_s, shift.number):
            return {}, {}, ""
        figures = {it: watched.figures.of(it) for it in shift.rising}
        return figures, {it: watched.shadows.of(it) for it in shift.watched_shadows}, watched.waits_for

    def _follow(self, shift: ShiftRecord) -> None:
        """It has begun, taken a step or ended: from now on calls are of its present step."""
        if shift.is_under_way:
            self._watch(shift)
        else:
            self._watched.pop(shift.endpoint, None)

    async def _look_at(self, name: str) -> None:
        moves: list[ShiftMove] = []

        def plan(desired: Desired) -> Plan:
            shift = desired.shifts.get(name)
            moves.append(STAY if shift is None else self._next(shift, desired))
            return NO_PLAN if shift is None else plan_move(desired, shift, moves[-1])

        await self._configurator.change(plan, ChangeTerms(origin=ChangeOrigin(who=WHO)))
        if (record := moves[-1].record) is not None:
            self._follow(record)

    def _next(self, shift: ShiftRecord, desired: Desired) -> ShiftMove:
        if not shift.is_under_way:
            return STAY
        watched, observed, clock = self._watch(shift), self._state.observed, self._state.clock
        watched.figures.add_reports(observed.routers.values())
        watched.shadows.add_reports(observed.routers.values())
        has_settled = clock.now() >= self._started_at + SETTLED_AFTER_S
        look = ShiftLook(
            is_due=clock.now() >= watched.due_at,
            figures={it: watched.figures.of(it) for it in shift.rising},
            shadows={it: watched.shadows.of(it) for it in shift.watched_shadows},
            flow=watched.figures.flow(observed.routers, clock.now()) if has_settled else CallFlow.UNKNOWN,
            ready=[it for it in shift.rising if any(map(is_ready, observed.replicas(it)))],
            rollouts=rollouts_of(shift, desired, observed),
        )
        move = follow(shift, look, clock.time_of_day())
        watched.waits_for = move.waits_for
        return move

    def _watch(self, shift: ShiftRecord) -> WatchedShift:
        """What is known of the shift, in its present step."""
        clock, watched = self._state.clock, self._watched.get(shift.endpoint)
        if watched is not None and (watched.began_s, watched.number) == (shift.began_s, shift.number):
            return watched
        left_s = min(max(0.0, shift.since_s + shift.every_s - clock.time_of_day()), shift.every_s)
        if watched is None or watched.began_s != shift.began_s:
            shadows = StepFigures(shift.watched_shadows, of_shadows=True)
            watched = WatchedShift(shift.began_s, shift.number, 0.0, StepFigures(shift.backends), shadows)
            self._watched[shift.endpoint] = watched
        watched.number, watched.due_at, watched.waits_for = shift.number, clock.now() + left_s, ""
        watched.figures.add_reports(self._state.observed.routers.values())
        watched.figures.begin_step()
        watched.shadows.add_reports(self._state.observed.routers.values())
        watched.shadows.begin_step()
        return watched

    def _forget_ended(self) -> None:
        """Nothing is known any more of shifts that something else has ended."""
        shifts = self._store.read().shifts
        for name, watched in list(self._watched.items()):
            shift = shifts.get(name)
            if shift is None or not shift.is_under_way or shift.began_s != watched.began_s:
                del self._watched[name]
