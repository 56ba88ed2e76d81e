"""Reservations that may have been granted before: their slots are looked for at the replicas, before another is taken.

Purpose: the caller of a reservation with a request id repeats it at this router, since it did not get the answer of
another one; or the link to a replica broke before that answered. A slot that was granted has its replica as the only
witness, so each replica that may hold it is queried.
Invariants: the reservation waits until all queried replicas have answered. One that has ended holds nothing, and one
that does not remember ids is passed over. If any other has not answered within `LINK_WAIT_S`, the reservation fails: no
second slot is taken. After a query, a replica grants nothing to older attempts, so no slot appears behind it. Callers
share the bound of queries, by identity, or by connection if callers are not authenticated.
Owner: the scheduler.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial
from typing import Final

from router_service.core import failures
from router_service.core.callers import Window
from router_service.core.calls import NO_OPTIONS, Flow, LeasedSlot, LookUpSlot, ReleasedSlot, Reserve
from router_service.core.commands import Step
from router_service.core.features.slot_requests import ONE_CALL, Requests
from router_service.core.lifecycle.feature import Feature
from router_service.core.lifecycle.intake import RoutingIntake
from router_service.core.look_ups import LINK_WAIT_S
from router_service.core.replicas.replica import RoutedReplica
from router_service.core.run_states import RunEvent
from router_service.core.runs import Caller, RouterRun, Sent
from slotmesh.calls.fair_shares import FairBound, Over
from slotmesh.errors import Failure, Reason

MAX_QUERIED: Final = 1_000
"""Replicas that one reservation is looked for at."""
MAX_UNDER_WAY: Final = 65_536
"""Queries of all reservations that are under way, about 1.6 KB each."""
_HOLDS_NONE: Final = frozenset({Reason.SLOT_UNKNOWN, Reason.NOT_IMPLEMENTED, Reason.REPLICA_GONE})
"""Answers of replicas without the slot. NOT_IMPLEMENTED: slotmesh 0.2.0, which remembers no ids."""
_FINAL: Final = frozenset({Reason.BAD_REQUEST, Reason.CANCELLED})
"""Answers that decide about the reservation: its id stands for another one, or a newer attempt is under way."""
_NOT_SENT: Final = frozenset({Reason.REPLICA_LOST, Reason.BACKEND_UNAVAILABLE})
"""Ends of queries whose replica may be reached again."""


class _Search:
    """The look-ups of one reservation."""

    __slots__ = ("holder", "is_over", "open", "run", "until")

    def __init__(self, run: RouterRun, until: float, holder: str | Flow) -> None:
        self.run = run
        """The reservation, which is held meanwhile."""
        self.holder = holder
        """Who has the queries of the bound."""
        self.until = until
        self.open: dict[RouterRun, RoutedReplica] = {}
        """Queries without an answer, and the replica of each."""
        self.is_over = False


class SlotLookUps(Feature):
    """All look-ups under way."""

    def __init__(
        self,
        intake: RoutingIntake,
        requests: Requests,
        bind: Callable[[RouterRun, RoutedReplica, Step], None],
    ) -> None:
        """`bind` sends an operation to the replica."""
        self._intake = intake
        self._topology = intake.topology
        self._outcomes = intake.outcomes
        self._requests = requests
        self._bind = bind
        self._searches: dict[RouterRun, _Search] = {}
        """By query."""
        self._bound: FairBound[str | Flow] = FairBound.within(MAX_UNDER_WAY, MAX_QUERIED)
        """These queries."""

    @property
    def under_way(self) -> Collection[object]:
        """The queries."""
        return self._searches

    def begin(self, run: RouterRun, step: Step) -> None:
        """Looks for the slot of this reservation, and routes the reservation if there is none."""
        work = run.slot
        if not isinstance(work, Reserve) or self._topology.endpoint(run.endpoint) is None:
            self._intake.route(run, step)
            return
        only, run.slot = work.lost_at, replace(work, lost_at=None)
        replicas = [
            each
            for key, each in self._topology.replicas.items()
            if (work.admits(key[0]) if only is None else key == only)
        ]
        if len(replicas) > MAX_QUERIED:
            self._outcomes.fail_waiting(run, failures.slot_at_too_many(len(replicas), MAX_QUERIED), step)
            return
        holder = work.identity or run.caller.flow
        if (over := self._bound.over(holder, len(replicas))) is not None:
            self._outcomes.fail_waiting(run, failures.too_many_look_ups(of_one=over is Over.SHARE), step)
            return
        step.advance(run, RunEvent.HELD)
        search = _Search(run, step.now + LINK_WAIT_S, holder)
        for replica in replicas:
            self._query(search, replica, step)
        self._go_on(search, step)

    def answered(self, sent: Sent, replica: RoutedReplica, answer: object, step: Step) -> RouterRun | None:
        """The replica has answered a query: by the slot, or by a failure. Returns the reservation that has its slot."""
        query = sent.run
        if replica.answer(sent, 0, 1):
            self._outcomes.slot(query, ReleasedSlot(), step)
        search = self._taken(query)
        if search is None:
            return None
        search.open.pop(query)
        if search.is_over:
            return None
        if isinstance(answer, LeasedSlot):
            return self._found(search, replica, answer, step)
        if isinstance(answer, Failure) and answer.reason in _HOLDS_NONE:
            self._go_on(search, step)
        elif isinstance(answer, Failure) and answer.reason in _FINAL:
            self._fail(search, failures.located(answer, replica), step)
        else:
            self._fail(search, failures.slot_may_be_held(replica.replica_id), step)
        return None

    def superseded(self, run: RouterRun, step: Step) -> bool:
        """A replica knows a newer attempt at this reservation. Returns whether a caller here is that attempt or newer.

        The reservation is looked for then: the router between may have got the slot.
        """
        work, request = run.slot, self._requests.pending.get(run.caller)
        if not isinstance(work, Reserve) or work.request is None or request is None:
            return False
        if request.attempt <= work.request.attempt:
            return False
        run.slot = replace(work, request=work.request._replace(attempt=request.attempt, resend=0))
        step.then(partial(self.begin, run))
        return True

    # -- hooks ---------------------------------------------------------------------------------------------------------

    def handed_back(self, run: RouterRun, step: Step) -> bool:
        """A reservation whose link broke is looked for at its replica, if it has a request id."""
        work = run.slot
        if not isinstance(work, Reserve) or work.lost_at is None or work.request is None:
            return False
        run.slot = replace(work, request=work.request._replace(resend=work.request.resend + 1))
        step.then(partial(self.begin, run))
        return True

    def failed(
        self, run: RouterRun, _begin: int, _count: int, failure: Failure, _sent: Sent | None, step: Step
    ) -> None:
        """A query has ended without an answer."""
        search = self._taken(run)
        if search is not None:
            step.then(partial(self._not_answered, search, search.open.pop(run), failure))

    def table_changed(self, step: Step) -> None:
        """Replicas may have ended: they hold no slot."""
        if self._searches:
            step.then(self._look_again)

    # -- within --------------------------------------------------------------------------------------------------------

    def _query(self, search: _Search, replica: RoutedReplica, step: Step) -> None:
        work = search.run.slot
        if not isinstance(work, Reserve) or work.request is None:
            raise TypeError("only reservations with a request id are looked for")
        look_up = LookUpSlot(request=work.request, identity=work.identity)
        caller = Caller(Window(0, 0))
        query = RouterRun(0, caller, "", NO_OPTIONS, ONE_CALL, [b""], step.now, slot=look_up)
        query.deadline = search.until
        caller.runs[query] = None
        search.open[query] = replica
        self._searches[query] = search
        self._bound.take(search.holder, 1)
        self._bind(query, replica, step)

    def _taken(self, query: RouterRun) -> _Search | None:
        """Forgets a query that has ended. Returns its search; None if it is forgotten already."""
        search = self._searches.pop(query, None)
        if search is not None:
            self._bound.give(search.holder, 1)
        return search

    def _not_answered(self, search: _Search, replica: RoutedReplica, failure: Failure, step: Step) -> None:
        if search.is_over:
            return
        if failure.reason in _HOLDS_NONE or not replica.listed:
            self._go_on(search, step)
        elif failure.reason in _NOT_SENT and step.now < search.until:
            self._query(search, replica, step)
        else:
            self._fail(search, failures.slot_may_be_held(replica.replica_id), step)

    def _look_again(self, step: Step) -> None:
        for query, search in list(self._searches.items()):
            replica = search.open[query]
            if replica.listed or replica.linked:
                continue
            self._taken(query)
            del search.open[query]
            for sent in list(query.sents):
                replica.withdraw(sent)
            self._outcomes.slot(query, ReleasedSlot(), step)
            self._topology.retire(replica, step)
            if not search.is_over:
                self._go_on(search, step)

    def _go_on(self, search: _Search, step: Step) -> None:
        """Routes the reservation if no replica holds its slot."""
        if search.open or not self._ends(search, step):
            return
        run = search.run
        if run.deadline <= step.now:
            self._outcomes.fail_waiting(run, failures.no_slot(run, step.now), step)
        else:
            self._intake.route(run, step)

    def _found(self, search: _Search, replica: RoutedReplica, slot: LeasedSlot, step: Step) -> RouterRun | None:
        if not self._ends(search, step):
            return None
        if (request := self._requests.pending.get(search.run.caller)) is not None:
            request.replica = replica
        search.run.cursor = 1
        self._outcomes.slot(search.run, slot, step)
        return search.run

    def _fail(self, search: _Search, failure: Failure, step: Step) -> None:
        if self._ends(search, step):
            self._outcomes.fail_waiting(search.run, failure, step)

    def _ends(self, search: _Search, step: Step) -> bool:
        """Ends the search. Returns whether its reservation still waits."""
        search.is_over = True
        if not search.run.unanswered:
            return False  # its caller has left
        step.advance(search.run, RunEvent.RELEASED)
        return True
