"""Shadows: backends that get sampled copies of calls, whose outcomes are only counted.

Invariants: copies are drawn before their calls are routed, and sent after them: a shadow takes nothing that a caller
could have had. Copies take free slots only, and neither wait nor make others wait.
Owner: the scheduler.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from math import inf

from router_service.core import failures
from router_service.core.callers import Window
from router_service.core.commands import Step
from router_service.core.lifecycle.feature import Feature
from router_service.core.lifecycle.intake import RoutingIntake
from router_service.core.limits.capacity import slice_calls
from router_service.core.replicas.backends import RoutedBackend
from router_service.core.replicas.replica import RoutedReplica
from router_service.core.run_states import Earlier
from router_service.core.runs import Caller, RouterRun
from router_service.core.sampling import Chance


class ShadowCopies(Feature):
    """Copies calls."""

    def __init__(self, intake: RoutingIntake, chance: Chance) -> None:
        """`chance` draws uniformly from [0, 1)."""
        self._intake = intake
        self._chance = chance
        self._no_caller = Caller(Window(0, 0))
        """The caller of all copies: their outcomes are delivered to no client."""
        self._copied: set[str] = set()
        """Endpoints with shadows, in the newest table."""

    @property
    def under_way(self) -> Collection[object]:
        """The endpoints with shadows."""
        return self._copied

    @property
    def copies(self) -> int:
        """Sampled copies at replicas."""
        return sum(copy.unanswered for copy in self._no_caller.runs)

    def begins(self, run: RouterRun, step: Step) -> bool:
        """Draws the copies of the run."""
        endpoint = self._intake.topology.endpoint(run.endpoint)
        if (
            endpoint is None
            or not endpoint.traffic.shadows
            or run.earlier is not Earlier.NONE
            or run.options.takes_requests
        ):
            return False
        for name, (lo, hi) in endpoint.traffic.copies(len(run.payloads), self._chance):
            copy = run.slice(lo, hi)
            copy.caller, copy.shadow_of, copy.tenant = self._no_caller, name, None
            step.then(partial(self._send, copy))
        return False

    def table_changed(self, _step: Step) -> None:
        """Endpoints may have got shadows, or have lost theirs."""
        self._copied.clear()
        self._copied.update(name for name, route in self._intake.topology.table.endpoints.items() if route.shadows)

    def _send(self, copy: RouterRun, step: Step) -> None:
        """Sends the calls for which a slot is free; drops the rest."""
        self._no_caller.runs[copy] = None
        backend = self._intake.topology.backends.get(copy.shadow_of or "")
        if backend is not None and not backend.queue:
            self._spread(copy, backend, step)
        self._intake.outcomes.fail_waiting(copy, failures.NO_FREE_SLOT, step)
        if copy.unanswered and copy.deadline != inf:
            self._intake.deadlines.watch(copy.deadline, copy)

    def _spread(self, run: RouterRun, backend: RoutedBackend[RoutedReplica], step: Step) -> None:
        method, most, preferences = run.options.method, run.waiting, backend.preferences_of(run, step.now)
        while run.waiting:
            if preferences is not None and (preferred := preferences.pick(run, run.waiting)) is not None:
                replica, share = preferred
            elif (picked := backend.pick(method)) is not None and picked.free_slots > 0:
                replica = picked
                share = min(slice_calls(most, backend.candidates, replica.times.get(method)), replica.free_slots)
            else:
                return
            self._intake.sender.send(run, min(share, run.waiting), replica, 0, step)
            backend.load_changed(replica)
