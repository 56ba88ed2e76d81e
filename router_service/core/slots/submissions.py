"""Submitted operations on slots: how they begin.

Owner: the scheduler.
"""

from __future__ import annotations

from collections.abc import Iterator

from router_service.core import failures
from router_service.core.callers import Caller
from router_service.core.calls import NO_OPTIONS, RouterCallOptions
from router_service.core.counters import RouterCounters
from router_service.core.outcomes import CallerOutcomes
from router_service.core.routing.intake import RoutingIntake
from router_service.core.routing.topology import Topology
from router_service.core.runs import RouterRun
from router_service.core.slots.events import CallDispatched, SlotOperationRequested, SlotRequested
from router_service.core.slots.operations import ONE_CALL, RoutedSlotOperations
from router_service.core.slots.requests import RequestedSlot
from router_service.core.slots.slot import SlotWork
from router_service.core.tenants.book import TenantBook
from slotmesh.errors import Failure
from slotmesh.wire.chunks import Payload


class SlotSubmissions:
    """Makes a run of each operation: reservations are routed, all others bound to their replica."""

    def __init__(
        self,
        numbers: Iterator[int],
        counters: RouterCounters,
        outcomes: CallerOutcomes,
        intake: RoutingIntake,
        operations: RoutedSlotOperations,
        topology: Topology,
        tenants: TenantBook,
    ) -> None:
        """`numbers` are the ages of runs."""
        self._numbers = numbers
        self._counters = counters
        self._outcomes = outcomes
        self._intake = intake
        self._operations = operations
        self._topology = topology
        self._tenants = tenants

    def requested(self, event: SlotRequested, now: float) -> None:
        """Begins a reservation, unless there is one of this request id."""
        caller, endpoint, options, wanted = event.caller, event.endpoint, event.options, event.wanted
        owner: Caller | None = caller
        if event.request_id:
            wish = RequestedSlot.of(endpoint, options, wanted)
            owner = self._operations.find(caller, event.request_id, wish, options.timeout_s, now)
        if owner is not None:
            run = self._run(owner, endpoint, options, b"", wanted, now)
            if (failure := self._over_limit(run, now)) is not None:
                self._outcomes.fail_waiting(run, failure)
            elif run.deadline <= now:
                self._outcomes.fail_waiting(run, failures.no_slot(run, now))
            else:
                self._intake.route(run, now)

    def dispatched(self, event: CallDispatched, now: float) -> None:
        """A call goes to the replica that has given the slot."""
        endpoint = event.into.endpoint
        self._counters.calls[self._counters.label(endpoint),] += 1
        run = self._run(event.caller, endpoint, event.options, event.payload, event.into, now)
        if run.options.tenant:  # limits were for the reservation: a dispatch frees what it holds
            self._tenants.attach(run, now)
        if run.deadline <= now:
            self._outcomes.fail_waiting(run, failures.deadline_in_queue(run))
        else:
            self._operations.bind(run, event.key, now)

    def operation_requested(self, event: SlotOperationRequested, now: float) -> None:
        """A renewal or a release goes to the replica that has given the slot."""
        self._operations.bind(self._run(event.caller, "", NO_OPTIONS, b"", event.op, now), event.key, now)

    def _over_limit(self, run: RouterRun, now: float) -> Failure | None:
        """The failure of a reservation that passes a limit of its tenant."""
        if not run.options.tenant:
            return None
        endpoint = self._topology.endpoint(run.endpoint)
        return self._tenants.enter(run, None if endpoint is None else endpoint.route.tenants, now)[1]

    def _run(
        self, caller: Caller, endpoint: str, options: RouterCallOptions, payload: Payload, work: SlotWork, now: float
    ) -> RouterRun:
        run = RouterRun(next(self._numbers), caller, endpoint, options, ONE_CALL, [payload], now, slot=work)
        caller.runs[run] = None
        return run
