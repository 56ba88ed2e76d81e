"""Lanes that stop at failures: once a call has failed, later calls of its ordering key and generation fail, too.

Invariants: a call submitted after a failure of its key and generation fails with it. Of earlier calls, those that no
frame has carried fail here; those at the replica fail there. A caller is given the failure of a cancelled or overdue
call only when its replica has stopped the lane behind it.
Owner: the scheduler; `Caller.stops` has the failures.
"""

from __future__ import annotations

from functools import partial

from router_service.core import failures
from router_service.core.commands import Step
from router_service.core.events import CallFailedAtEdge, LanesStopped
from router_service.core.lifecycle.deadlines_and_cancellation import EarlyEnds
from router_service.core.lifecycle.feature import Feature
from router_service.core.lifecycle.outcomes import CallerOutcomes
from router_service.core.run_states import RunState
from router_service.core.runs import RouterRun, Sent
from slotmesh.calls.id_ranges import holds, merged
from slotmesh.errors import Failure


class StoppingLanes(Feature):
    """Stops lanes."""

    def __init__(self, outcomes: CallerOutcomes, ends: EarlyEnds) -> None:
        self._outcomes = outcomes
        self._ends = ends

    def follows(self, run: RouterRun, step: Step) -> bool:
        """Fails a run behind a failure."""
        if run.options.stop_generation and run.is_behind_failure:
            self._outcomes.fail_waiting(run, failures.PREDECESSOR_FAILED, step)
            return True
        return False

    def failed(
        self, run: RouterRun, begin: int, _count: int, _failure: Failure, _sent: Sent | None, step: Step
    ) -> None:
        """The lane stops at the first of these calls."""
        options = run.options
        if options.stop_generation and run.session is not None and run.state is not RunState.LEFT:
            key = options.ordering_key
            if run.caller.stops.stop(key, options.stop_generation, run.ids[begin]):
                step.then(partial(self._ends.end_after_failure, run.caller, key))

    def failed_at_edge(self, event: CallFailedAtEdge, _step: Step) -> None:
        """Later calls of its key and generation fail when it is their turn to begin."""
        event.caller.stops.stop(event.ordering_key, event.stop_generation, event.call_id)

    def stopped(self, event: LanesStopped, step: Step) -> None:
        """Fails calls that were cancelled or overdue, now that the replica has confirmed that nothing starts behind."""
        wanted = merged(event.ranges)
        for sent in list(event.replica.inflight.values()):
            if sent.asked:
                confirmed = [at for at in sent.asked if holds(wanted, sent.first + at)]
                self._outcomes.stop_asking(sent, confirmed, step)
