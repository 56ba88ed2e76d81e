"""Sessions that moved to this router: what became of the calls that an earlier connection had sent.

Purpose: a client that lost its router resends its unanswered calls. The router queries the replicas first: calls that a
replica has are recovered from it, calls that provably no replica has received run, and calls that may have run at a
replica that cannot be queried are not run again. docs/guarantees.md has the proof.
Invariants: a resent call is held until every replica that could have received it has answered, or is known not to; then
it is recovered, routed or failed, exactly once. A found call needs no proof; that no replica has a call does. Calls of
an ordering key wait behind held ones of their key, in order; all other new calls do not wait. A call that no replica
has received does not run if later ones of its key have: it was lost in transit, and they have passed it. No state here
outlives the connection: the next router queries again.
Owner: the scheduler.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Sequence
from itertools import groupby
from typing import NamedTuple

from router_service.core import failures
from router_service.core.commands import AskReconcile, Step
from router_service.core.events import AllCallsResent, SessionReconciled
from router_service.core.lifecycle.feature import Feature
from router_service.core.lifecycle.intake import RoutingIntake
from router_service.core.replicas.replica import RoutedReplica
from router_service.core.rosters import FoundCalls, ReplicaKey, RosterVersion, SessionConnection
from router_service.core.run_states import Earlier, RunEvent
from router_service.core.runs import Caller, RouterRun
from slotmesh.calls.id_ranges import Range, holds, merged
from slotmesh.errors import Failure

MAX_RESENT = 65_536
"""The limit of resent runs with ordering keys that are remembered, several times what a window holds. Beyond it, the
keys of the calls that were found are unknown."""


class Trace(NamedTuple):
    """Calls of one session that a replica has reported, by their first and last id."""

    first: int
    last: int
    replica: RoutedReplica
    is_evicted: bool


class Resumption:
    """What is known so far of the calls of one session."""

    __slots__ = (
        *("awaited", "awaits_calls", "give_up_at", "held", "is_covered", "is_over", "keys", "lanes", "newest_found"),
        *("newest_of_any_key", "queried", "reported", "resent", "rosters", "traces", "unanswered", "unreachable"),
    )

    def __init__(self, unanswered: Sequence[Range], rosters: Sequence[RosterVersion]) -> None:
        self.unanswered = unanswered
        self.rosters = rosters
        """Those that the client has acknowledged since it sent the first of these calls: no other replica has them."""
        self.is_covered = False
        """The table lists all replicas of these rosters, or lists them as departed."""
        self.is_over = False
        """No report is awaited any more."""
        self.give_up_at = 0.0
        """When reports, and a table that lists all replicas, are awaited no longer; monotonic seconds."""
        self.queried: set[RoutedReplica] = set()
        self.awaited: dict[RoutedReplica, None] = {}
        """Those of them that have not reported, and may still."""
        self.reported: set[ReplicaKey] = set()
        """Those that have reported, and start no call of an earlier connection any more."""
        self.unreachable = ""
        """A replica that cannot report, or has forgotten calls; empty if there is none."""
        self.traces: list[Trace] = []
        self.held: list[tuple[RouterRun, bool]] = []
        """Runs in order of arrival, and whether they were sent before."""
        self.keys: set[str] = set()
        """Ordering keys among them."""
        self.awaits_calls = bool(unanswered)
        """Calls are still being resent; the client marks the last one."""
        self.resent = 0
        """Runs with ordering keys that were sent again."""
        self.lanes: dict[str, list[Sequence[int]]] = {}
        """Ordering key -> ids of its calls that were sent again."""
        self.newest_found: dict[str, int] = {}
        """Ordering key -> the last of these that was found. Known once it is over."""
        self.newest_of_any_key = 0
        """The last call that was found, where it is not known which key each of them has."""

    @property
    def is_done(self) -> bool:
        """No report is awaited any more, and the client resends no further call."""
        return self.is_over and not self.awaits_calls

    def add_report(self, replica: RoutedReplica, found: FoundCalls) -> bool:
        """Keeps the report of a replica. Returns whether the replica has, or had, any of the calls."""
        before = len(self.traces)
        self.reported.add(replica.key)
        if found.forgotten:
            self.unreachable = replica.replica_id
        for spans, is_evicted in ((found.evicted, True), (found.kept, False), (found.running, False)):
            self.traces += [Trace(first, last, replica, is_evicted) for first, last in spans]
        return len(self.traces) > before

    def note_resent(self, run: RouterRun) -> None:
        """The run was sent again. Its payload may be under way."""
        if (key := run.options.ordering_key) and not self.is_over:
            self.resent += 1
            if self.resent <= MAX_RESENT:
                self.lanes.setdefault(key, []).append(run.ids)

    def close(self) -> None:
        """No report is awaited any more: finds the last call of each ordering key that a replica has."""
        self.is_over = True
        found = merged((trace.first, trace.last) for trace in self.traces)
        for key, sent in self.lanes.items():
            for ids in sent:
                newest = next((each for each in reversed(ids) if holds(found, each)), 0)
                self.newest_found[key] = max(newest, self.newest_found.get(key, 0))
        self.lanes.clear()
        if self.awaits_calls or self.resent > MAX_RESENT:
            self.newest_of_any_key = max((last for _, last in found), default=0)

    def is_passed(self, run: RouterRun) -> bool:
        """Whether later calls of the run's ordering key were found, or may have been: it would run behind them."""
        key = run.options.ordering_key
        return bool(key) and run.ids[0] < max(self.newest_found.get(key, 0), self.newest_of_any_key)

    def traces_of(self, ids: Sequence[int]) -> list[Trace | None]:
        """Where each of the calls was found. A trace that leads to an outcome goes before one that does not."""
        traces: list[Trace | None] = [None] * len(ids)
        for trace in sorted(self.traces, key=lambda trace: not trace.is_evicted):
            lo, hi = bisect_left(ids, trace.first), bisect_right(ids, trace.last)
            traces[lo:hi] = [trace] * (hi - lo)
        return traces


REPORTS_WITHIN_S = 5.0
"""The time limit for reports: longer than it takes to find a silent link, or for a table to arrive."""


class Resumptions(Feature):
    """The resumptions of connected sessions."""

    def __init__(self, intake: RoutingIntake) -> None:
        self._intake = intake
        self._topology = intake.topology
        self._outcomes = intake.outcomes
        self._by_session: dict[SessionConnection, Resumption] = {}
        self.unresolved: dict[tuple[str, int], tuple[SessionConnection, Resumption]] = {}
        """Those that are not over, by session id and epoch, in the order of `give_up_at`."""

    @property
    def under_way(self) -> Collection[object]:
        """Sessions that were connected elsewhere before."""
        return self._by_session

    # -- clients ---------------------------------------------------------------------------------------------------

    def connected(self, caller: Caller, step: Step) -> None:
        """A client has connected. If it was connected elsewhere before, the replicas are queried."""
        session = caller.session
        if session is not None and session.epoch > 1:
            resumption = self._by_session[session] = Resumption(session.unanswered, session.rosters)
            self.unresolved[session.session_id, session.epoch] = session, resumption
            resumption.give_up_at = step.now + REPORTS_WITHIN_S
            self._query(session, resumption, step)
            self._decide(session, resumption, step)

    def left(self, caller: Caller, step: Step) -> None:
        """The connection has ended."""
        if (session := caller.session) is not None:
            resumption = self._by_session.pop(session, None)
            self.unresolved.pop((session.session_id, session.epoch), None)
            if resumption is not None and not resumption.is_done:
                self._release_links(resumption, step)

    def resent(self, run: RouterRun) -> None:
        """The run was sent again. Its payload may be under way."""
        if run.session is not None and (resumption := self._by_session.get(run.session)) is not None:
            resumption.note_resent(run)

    def all_resent(self, event: AllCallsResent, step: Step) -> None:
        """The client resends no further call."""
        session = event.caller.session
        if session is None:
            return
        if (resumption := self._by_session.get(session)) is not None and resumption.awaits_calls:
            resumption.awaits_calls = False
            if (session.session_id, session.epoch) in self.unresolved:
                self._decide(session, resumption, step)
            else:
                self._release_links(resumption, step)

    def holds_keys(self, caller: Caller) -> bool:
        """Whether calls of the session that were sent before may still have to run before new ones."""
        if caller.session is None:
            return False
        resumption = self._by_session.get(caller.session)
        return caller.session.is_suspended or (resumption is not None and not resumption.is_over)

    def follows(self, run: RouterRun, step: Step) -> bool:
        """Takes the run, if it was sent before or has to wait behind one that was."""
        if run.session is None or (resumption := self._by_session.get(run.session)) is None:
            return False
        resent = run.earlier is not Earlier.NONE
        if resumption.is_over:
            if resent:
                self._settle(run, resumption, step)
            return resent
        key = run.options.ordering_key
        if not resent and key not in resumption.keys:
            return False
        if key:
            resumption.keys.add(key)
        if resent and not resumption.awaited:
            self._settle(run, resumption, step)
            return True
        self._hold(run, resumption, step, resent=resent)
        return True

    # -- replicas --------------------------------------------------------------------------------------------------

    def link_opened(self, replica: RoutedReplica, step: Step) -> None:
        """The replica can be queried."""
        for session, resumption in self.unresolved.values():
            if replica in resumption.awaited:
                step.commands.append(AskReconcile(replica, session))

    def link_lost(self, replica: RoutedReplica, step: Step) -> None:
        """The replica has not reported: its process may have ended, and its records with it."""
        for session, resumption in list(self.unresolved.values()):
            if replica in resumption.awaited:
                self._give_up(resumption, [replica], step)
                self._decide(session, resumption, step)

    def reconciled(self, event: SessionReconciled, step: Step) -> None:
        """A replica has reported. No effect if the session has disconnected."""
        replica = event.replica
        session, resumption = self.unresolved.get((event.session_id, event.epoch), (None, None))
        if session is not None and resumption is not None and replica in resumption.awaited:
            del resumption.awaited[replica]
            if not resumption.add_report(replica, event.found):
                self._topology.release_link(replica, step)
            self._decide(session, resumption, step)

    def table_changed(self, step: Step) -> None:
        """The table may list all replicas that may have the calls, and may no longer list others."""
        step.then(self._query_again)

    def _query_again(self, step: Step) -> None:
        for session, resumption in list(self.unresolved.values()):
            self._query(session, resumption, step)
            self._give_up(resumption, [each for each in resumption.awaited if not each.listed], step)
            self._decide(session, resumption, step)

    # -- time ------------------------------------------------------------------------------------------------------

    def next_deadline(self) -> float | None:
        """The earliest `give_up_at`; None if no session waits."""
        if not self.unresolved:
            return None
        _, resumption = next(iter(self.unresolved.values()))
        return resumption.give_up_at

    def expire(self, step: Step) -> None:
        """Ends the waits of sessions whose time limit has passed."""
        while (first := next(iter(self.unresolved.values()), None)) is not None and first[1].give_up_at <= step.now:
            session, resumption = first
            self._give_up(resumption, list(resumption.awaited), step)
            self._decide(session, resumption, step)

    # -- querying --------------------------------------------------------------------------------------------------

    def _query(self, session: SessionConnection, resumption: Resumption, step: Step) -> None:
        """Queries the replicas that were not queried, until a table has listed all that may have the calls."""
        if resumption.is_covered or not self._topology.table.revision:
            return
        resumption.is_covered = self._topology.table.roster.covers_all(resumption.rosters)
        if not resumption.unanswered:
            return
        # Replicas of every backend: the endpoint's policy may have changed since the calls were sent.
        for replica in self._topology.replicas.values():
            if replica not in resumption.queried:
                resumption.queried.add(replica)
                resumption.awaited[replica] = None
                replica.link_users += 1
                if replica.linked:
                    step.commands.append(AskReconcile(replica, session))
                else:
                    self._topology.links.need(replica, step, is_query=True)

    def _give_up(self, resumption: Resumption, replicas: Iterable[RoutedReplica], step: Step) -> None:
        """Reports of these replicas are not awaited any more."""
        for replica in replicas:
            del resumption.awaited[replica]
            self._topology.release_link(replica, step)
            resumption.unreachable = replica.replica_id

    # -- deciding --------------------------------------------------------------------------------------------------

    def _decide(self, session: SessionConnection, resumption: Resumption, step: Step) -> None:
        """Recovers, routes or fails the held calls, once no report is awaited. Resent ones may have to wait longer."""
        if resumption.awaited:
            return
        is_known = (resumption.is_covered or not resumption.rosters) and not resumption.awaits_calls
        if is_known or resumption.give_up_at <= step.now:
            resumption.close()
            del self.unresolved[session.session_id, session.epoch]
        held, resumption.held = resumption.held, []
        for run, resent in held:
            if not run.waiting:
                continue  # cancelled, or too late, meanwhile
            step.advance(run, RunEvent.RELEASED)
            if resent:
                self._settle(run, resumption, step)
            elif resumption.is_over:
                self._intake.route(run, step)
            else:
                self._hold(run, resumption, step, resent=resent)
        if resumption.is_done:
            self._release_links(resumption, step)

    def _release_links(self, resumption: Resumption, step: Step) -> None:
        """The session needs no link to the replicas any more. Recovered calls keep theirs open."""
        for replica in {*resumption.awaited, *(trace.replica for trace in resumption.traces)}:
            self._topology.release_link(replica, step)

    def _hold(self, run: RouterRun, resumption: Resumption, step: Step, *, resent: bool) -> None:
        resumption.held.append((run, resent))
        step.advance(run, RunEvent.HELD)
        self._intake.watch(run)

    def _settle(self, run: RouterRun, resumption: Resumption, step: Step) -> None:
        """Recovers each resent call from the replica that has it. A call that no replica has is routed or fails.

        It is held while a report is missing that could change that.
        """
        ids = run.ids
        at = 0
        for trace, group in groupby(resumption.traces_of(ids)):
            begin, at = at, at + len(list(group))
            part = run
            if at - begin < len(ids):
                part = run.slice(begin, at)
                self._outcomes.replaced(run, at - begin, part, step)
            if trace is None and not resumption.is_over:
                self._hold(part, resumption, step, resent=True)
            elif trace is None and resumption.is_passed(part):
                self._fail_passed(part, self._why_unknown(part, resumption), step)
            elif trace is None:
                self._not_found(part, self._why_unknown(part, resumption), step)
            elif trace.is_evicted:
                self._outcomes.fail_waiting(part, failures.result_evicted(trace.replica), step)
            elif trace.replica.linked:
                self._intake.recover(part, trace.replica, step)
            else:
                self._not_found(part, failures.not_heard(trace.replica.replica_id), step)

    def _why_unknown(self, run: RouterRun, resumption: Resumption) -> Failure | None:
        """Why the calls may have been executed although no queried replica has them; None if they were not."""
        if not resumption.rosters:
            return None  # their routers could not send them to any replica
        if resumption.unreachable:
            return failures.not_heard(resumption.unreachable)
        roster = self._topology.table.roster
        if not resumption.is_covered or (run.first_roster is not None and not roster.covers_all([run.first_roster])):
            return failures.NOT_COVERED
        departed = roster.lost_since(run.first_roster, resumption.reported)
        return failures.not_heard(departed) if departed else None

    def _fail_passed(self, run: RouterRun, unknown: Failure | None, step: Step) -> None:
        """Later calls of the key have run; `unknown` is the reason why these may have run too, though not found."""
        run.earlier = Earlier.NONE if unknown is None else Earlier.UNKNOWN
        self._outcomes.fail_waiting(run, failures.PASSED, step)

    def _not_found(self, run: RouterRun, unknown: Failure | None, step: Step) -> None:
        """No queried replica has the calls; `unknown` is the reason why one may have executed them nevertheless."""
        if unknown is not None and not run.options.idempotent:
            self._outcomes.fail_waiting(run, unknown, step)
            return
        run.attempt += unknown is not None
        run.earlier = Earlier.NONE
        self._intake.route(run, step)
