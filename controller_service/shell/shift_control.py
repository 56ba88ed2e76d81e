"""What operators ask of shifts of traffic: to begin one, to end it, and how it is.

Invariants: answered after the store has it; the task that moves shifts hears of it at once.
Owner: the event loop; the servicer calls it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from controller_service.core.backend_load import CallEnds
from controller_service.core.desired import Desired
from controller_service.core.planning import ChangeTerms, Plan
from controller_service.core.shifting.planning import SaidShift, plan_end, plan_shift
from controller_service.core.shifting.record import ShiftRecord
from controller_service.shell.change_refusals import endpoint_not_found
from controller_service.shell.configurator import Configurator, PlannedChange
from controller_service.shell.mesh_state import MeshState
from controller_service.shell.shifter import Shifter
from controller_service.store.protocol import Store
from slotmesh.status import to_exception


class ShownShift(NamedTuple):
    """A shift, as operators see it."""

    record: ShiftRecord
    figures: Mapping[str, CallEnds]
    """Of its present step, by backend."""
    shadows: Mapping[str, CallEnds]
    """The same of copies of calls, for shadows that guards look at."""
    waits_for: str


class ShiftControl:
    """Begins, ends and shows shifts."""

    def __init__(self, configurator: Configurator, store: Store, state: MeshState, shifter: Shifter) -> None:
        self._configurator = configurator
        self._store = store
        self._state = state
        self._shifter = shifter

    async def begin(self, said: SaidShift, terms: ChangeTerms, *, requires_ready: bool = False) -> PlannedChange:
        """The first step of the shift. Raises EndpointNotFound, InvalidSpec, RevisionConflict.

        `requires_ready`: it is refused if a backend that gets more calls has no ready replica.
        """
        who, time_s = terms.origin.who, self._state.clock.time_of_day()

        def plan(desired: Desired) -> Plan:
            _require(desired, said.endpoint)
            planned = plan_shift(desired, said, who=who, time_s=time_s)
            if requires_ready:
                self._configurator.require_ready(desired, said.endpoint, planned.change.put_shifts[0].rising)
            return planned

        changed = await self._configurator.change(plan, terms)
        return self._took(changed, terms)

    async def end(self, name: str, terms: ChangeTerms, *, goes_back: bool) -> PlannedChange:
        """The end of the shift. Raises EndpointNotFound, InvalidSpec, RevisionConflict."""
        who, time_s = terms.origin.who, self._state.clock.time_of_day()

        def plan(desired: Desired) -> Plan:
            _require(desired, name)
            return plan_end(desired, name, goes_back=goes_back, who=who, time_s=time_s)

        changed = await self._configurator.change(plan, terms)
        return self._took(changed, terms)

    def show(self, name: str = "") -> list[ShownShift]:
        """That of an endpoint, or all, by endpoint. Raises EndpointNotFound."""
        desired = self._store.read()
        if name:
            _require(desired, name)
        shifts = [desired.shifts[it] for it in sorted(desired.shifts) if name in {"", it}]
        return [ShownShift(it, *self._shifter.known(it.endpoint)) for it in shifts]

    def _took(self, changed: PlannedChange, terms: ChangeTerms) -> PlannedChange:
        (record,) = changed.plan.change.put_shifts
        if not terms.dry_run:
            self._shifter.watch(record)
        return changed


def _require(desired: Desired, name: str) -> None:
    if name not in desired.endpoints:
        raise to_exception(endpoint_not_found(name))
