"""How runs begin: at once, when their payloads are complete, or when it is known what became of an earlier sending.

Invariants: a run begins once. What comes after a failure of its key and generation fails with it.
Owner: the scheduler, which follows up what has ended.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING

from router_service.core import failures
from router_service.core.runs import CallerBook, Run

if TYPE_CHECKING:
    from collections.abc import Iterator

    from router_service.core.commands import DeliverResults
    from router_service.core.outcomes import Outcomes
    from router_service.core.routing.intake import Intake
    from router_service.core.routing.topology import Topology
    from router_service.core.sessions.resumption import Resumptions
    from router_service.core.uploads.uploads import Uploads


class Submissions:
    """Sees to it that each run of calls begins, or fails before."""

    def __init__(
        self,
        numbers: Iterator[int],
        topology: Topology,
        outcomes: Outcomes,
        intake: Intake,
        resumptions: Resumptions,
        uploads: Uploads,
    ) -> None:
        """`numbers` are the ages of runs."""
        self._numbers = numbers
        self._topology = topology
        self._outcomes = outcomes
        self._intake = intake
        self._resumptions = resumptions
        self._uploads = uploads

    def holds_back(self, run: Run, now: float) -> bool:
        """Whether the run waits for payloads, or fails as there is no room for them."""
        if failure := self._uploads.refuse(run):
            self._outcomes.fail_waiting(run, failure)
        elif self._uploads.take(run, now):
            self._intake.watch(run)
        else:
            return False
        return True

    def begin(self, run: Run, now: float) -> None:
        """The run is complete, and its turn: to the replicas that may have it already, or to the one that gets it."""
        options, caller = run.options, run.caller
        if options.stop_generation and caller.has_stopped(options.ordering_key, options.stop_generation, run.ids[0]):
            self._outcomes.fail_waiting(run, failures.PREDECESSOR_FAILED)
            return
        if caller.session is not None and self._resumptions.take(run, now, resent=run.may_have_run):
            return
        endpoint = self._topology.endpoints.get(run.endpoint)
        # Drawn before, sent after the primary: a shadow takes nothing that the caller could have had.
        is_copied = endpoint is not None and endpoint.traffic.shadows and not run.may_have_run
        copies = self._intake.draw_copies(run) if is_copied else ()
        self._intake.route(run, now)
        for copy in copies:
            self._intake.send_copy(copy, now)

    def fetch(self, caller: CallerBook, endpoint: str, answered: DeliverResults, now: float) -> None:
        """The payloads of these results were dropped here: asks the replica, which keeps them, once more."""
        options = replace(answered.options, partition=-1, timeout_s=inf)
        payloads = [b""] * len(answered.ids)
        run = Run(next(self._numbers), caller, endpoint, options, answered.ids, payloads, now)
        run.may_have_run = run.was_answered = True
        caller.runs[run] = None
        if answered.replica.linked:
            self._intake.recover(run, answered.replica, now)
        else:
            self._outcomes.fail_waiting(run, failures.result_evicted(answered.replica))
