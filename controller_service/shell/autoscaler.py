"""Looks at the load each second, and has the number of replicas follow it.

Purpose: reads what routers have reported, asks the core (or a policy of the operator's own, beside the event loop), and
writes the number that should run into the observed state, where reconciling finds it.
Invariants: a backend that wants its number chosen has one from the first look on; one that does not, has none; a policy
that fails, or says what is no number, changes nothing; calls that wait where no replica runs are looked at when their
report comes, not a second later.
Owner: one task, and the links to routers, which call `loads_reported`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import Final

from controller_service.core.autoscaling.choosing import choose, first_scale
from controller_service.core.autoscaling.figures import figures_of
from controller_service.core.autoscaling.needs import need_of
from controller_service.core.autoscaling.scales import BackendScale
from controller_service.core.backend_load import BackendLoad
from controller_service.core.notices import EventKind, Notice
from controller_service.core.replica_numbers import running_replicas
from controller_service.core.transitions import Transition
from controller_service.shell.mesh_state import Concern, Key, MeshState
from controller_service.shell.policy_calls import PolicyCalls
from controller_service.store.protocol import Store
from slotmesh.autoscaling import ScalePolicy
from slotmesh.spec.autoscale import Autoscale
from slotmesh.spec.model import Backend

LOOK_EVERY_S: Final = 1.0


class Autoscaler:
    """Chooses how many replicas run, of backends that have `autoscale`."""

    def __init__(self, store: Store, state: MeshState, policies: Mapping[str, ScalePolicy]) -> None:
        """`policies` are the operator's own, by `MODULE:NAME`."""
        self._store = store
        self._state = state
        self._policies = PolicyCalls(policies, state.clock.now, lambda backend: self._look_at({backend}))
        self._started_at = state.clock.now()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            self.look()
            await asyncio.sleep(LOOK_EVERY_S)

    async def watch_store(self) -> None:
        """Looks at once when the configuration changes, until the store is closed."""
        configured_at = -1
        async for desired in self._store.watch(after_revision=-1):
            if desired.configured_at != configured_at:
                configured_at = desired.configured_at
                self.look()

    def loads_reported(self, loads: tuple[BackendLoad, ...]) -> None:
        """A router has reported: where calls wait and no replica should run, that is looked at now."""
        scales = self._state.observed.scales
        for load in loads:
            scale = scales.get(load.backend)
            if scale is not None and not scale.number and load.queued:
                self.look()
                return

    def look(self) -> None:
        """Looks at every backend, once. A policy is asked now; what it answers is followed when it comes."""
        self._look_at(None)

    def _look_at(self, names: Collection[str] | None) -> None:
        """Looks at these; None: at all."""
        scaled = {name: it for name, it in self._store.read().backends.items() if it.autoscale is not None}
        self._policies.forget_others({(name, it.autoscale.policy) for name, it in scaled.items() if it.autoscale})
        known = self._state.observed.scales
        left = known.keys() - (known.keys() if names is None else names)
        scales = {
            name: known[name] if name in left else self._next(backend, known.get(name))
            for name, backend in scaled.items()
        }
        if not scales and not known:
            return
        changed = [name for name, it in scales.items() if name not in known or it.number != known[name].number]
        notices = [
            _notice(name, it) for name, it in scales.items() if it.changed is it.latest and it is not known.get(name)
        ]
        wakes = [key for name in changed for key in (Key(Concern.BACKEND, name), Key(Concern.TABLE))]
        self._state.apply(Transition(self._state.observed.with_scales(scales), tuple(notices)), *wakes)

    def _next(self, backend: Backend, scale: BackendScale | None) -> BackendScale:
        rules, observed, now = backend.autoscale or Autoscale(), self._state.observed, self._state.clock.now()
        if scale is None:
            return first_scale(
                rules, figures_of(backend.name, observed, running_replicas(backend.name, observed), now), now
            )
        figures = figures_of(backend.name, observed, scale.number, now)
        answer = None
        if rules.policy and (answer := self._policies.answer(backend.name, rules.policy, figures)) is None:
            return scale
        need = need_of(rules, figures, answer)
        return choose(scale, rules, need, figures, now, started_at=self._started_at)


def _notice(backend: str, scale: BackendScale) -> Notice:
    decision = scale.latest
    message = f"from {decision.before} to {decision.number} replicas: {decision.why}"
    return Notice(kind=EventKind.BACKEND_SCALED, subject=f"backend/{backend}", message=message)
