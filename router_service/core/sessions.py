"""Sessions that moved here: what became of the calls that an earlier connection had sent.

Purpose: a client that lost its router sends again what is unanswered. Its replicas are asked first: what they have is
recovered from them, what none of them has seen runs, and what may have run where nobody can be asked is not run again.
Invariants: a call that was sent again is held until every replica has answered, or is known not to; then it is
recovered, routed or failed, exactly once. Calls of an ordering key wait behind held ones of their key, in order; all
other new calls do not wait. Nothing here outlives the connection: the next router asks anew.
Owner: the scheduler.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from router_service.core import failures
from router_service.core.commands import AskReconcile

if TYPE_CHECKING:
    from collections.abc import Sequence

    from router_service.core.calls import Run
    from router_service.core.commands import Command
    from router_service.core.intake import Intake
    from router_service.core.outcomes import Outcomes
    from router_service.core.replicas import Replica
    from router_service.core.topology import Topology

Span = tuple[int, int]
"""Call ids from first to last, both included."""

PATIENCE_S = 5.0
"""A replica that has not answered by then is not waited for: longer than a silent link takes to be found."""


class Session:
    """One connection of a session. Compared by identity."""

    __slots__ = ("epoch", "resumption", "session_id")

    def __init__(self, session_id: str, epoch: int, unanswered: Sequence[Span] = ()) -> None:
        """`unanswered`: the calls that earlier connections have sent, and that have no outcome yet."""
        self.session_id = session_id
        self.epoch = epoch
        """1 at the first connection, one more at each further one."""
        self.resumption = Resumption(unanswered) if epoch > 1 else None
        """What became of these calls; None at the first connection."""


@dataclass(frozen=True, slots=True)
class Found:
    """What one replica knows of the calls that it was asked about."""

    running: Sequence[Span] = ()
    kept: Sequence[Span] = ()
    evicted: Sequence[Span] = ()
    """Executed, and the outcome no longer kept."""
    forgotten: bool = False
    """It has forgotten calls of the session that had started: of a call in no list it knows nothing."""


class _Trace(NamedTuple):
    """Where calls were found."""

    first: int
    last: int
    replica: Replica
    is_evicted: bool


class Resumption:
    """What is known so far of the calls of a session that moved here."""

    __slots__ = ("asked", "began", "deaf", "held", "is_asking", "is_over", "keys", "traces", "unanswered")

    def __init__(self, unanswered: Sequence[Span]) -> None:
        self.unanswered = unanswered
        self.is_asking = False
        """There was a table that names replicas, and they are being asked."""
        self.is_over = False
        """Nothing more will be known."""
        self.began = 0.0
        """When the asking began, monotonic seconds."""
        self.asked: dict[Replica, None] = {}
        """Those that have not answered."""
        self.deaf = ""
        """A replica that cannot answer; empty where all did."""
        self.traces: list[_Trace] = []
        self.held: list[tuple[Run, bool]] = []
        """Runs in order of arrival, and whether they were sent before."""
        self.keys: set[str] = set()
        """Ordering keys among them."""

    def trace(self, replica: Replica, found: Found) -> None:
        """Keeps what the replica has said."""
        for spans, is_evicted in ((found.evicted, True), (found.kept, False), (found.running, False)):
            self.traces += [_Trace(first, last, replica, is_evicted) for first, last in spans]

    def traces_of(self, ids: Sequence[int]) -> list[_Trace | None]:
        """Where each of the calls was found. A trace that leads to an outcome goes before one that does not."""
        traces: list[_Trace | None] = [None] * len(ids)
        for trace in sorted(self.traces, key=lambda trace: not trace.is_evicted):
            lo, hi = bisect_left(ids, trace.first), bisect_right(ids, trace.last)
            traces[lo:hi] = [trace] * (hi - lo)
        return traces


class Sessions:
    """The resumptions under way."""

    def __init__(self, out: list[Command], topology: Topology, outcomes: Outcomes, intake: Intake) -> None:
        """Writes into `out`, the scheduler's list of commands."""
        self._out = out
        self._topology = topology
        self._outcomes = outcomes
        self._intake = intake
        self._asking: dict[Session, Resumption] = {}

    # -- clients ---------------------------------------------------------------------------------------------------

    def opened(self, session: Session, now: float) -> None:
        """A client has connected. Where it had been elsewhere before, the replicas are asked."""
        if session.resumption is not None:
            self._asking[session] = session.resumption
            self._ask(session, session.resumption, now)

    def left(self, session: Session) -> None:
        """The connection is gone."""
        self._asking.pop(session, None)

    def take(self, run: Run, now: float, *, resent: bool) -> bool:
        """Takes the run, if it was sent before or has to wait behind one that was."""
        if run.session is None or (resumption := run.session.resumption) is None:
            return False
        if resumption.is_over:
            if resent:
                self._settle(run, resumption, now)
            return resent
        key = run.options.ordering_key
        if not resent and key not in resumption.keys:
            return False
        if key:
            resumption.keys.add(key)
        resumption.held.append((run, resent))
        self._intake.watch(run)
        return True

    # -- replicas --------------------------------------------------------------------------------------------------

    def link_up(self, replica: Replica) -> None:
        """The replica can be asked."""
        for session, resumption in self._asking.items():
            if replica in resumption.asked:
                self._out.append(AskReconcile(replica, session))

    def link_down(self, replica: Replica, now: float) -> None:
        """The replica was not heard: its process may be gone, and with it what it has done."""
        for session, resumption in list(self._asking.items()):
            self._give_up(session, resumption, [replica] if replica in resumption.asked else [], now)

    def reconciled(self, replica: Replica, session_id: str, epoch: int, found: Found, now: float) -> None:
        """A replica has answered. What nobody waits for any more changes nothing."""
        for session, resumption in list(self._asking.items()):
            if (session.session_id, session.epoch) == (session_id, epoch) and replica in resumption.asked:
                del resumption.asked[replica]
                resumption.trace(replica, found)
                self._finish_if_heard(session, resumption, now)

    def table_changed(self, now: float) -> None:
        """There may be a table at last, and replicas may have left it."""
        for session, resumption in list(self._asking.items()):
            if resumption.is_asking:
                self._give_up(session, resumption, [each for each in resumption.asked if not each.listed], now)
            else:
                self._ask(session, resumption, now)

    # -- time ------------------------------------------------------------------------------------------------------

    def next_deadline(self) -> float | None:
        """When the first replica has had its time to answer; None where none is being asked."""
        return min((each.began + PATIENCE_S for each in self._asking.values() if each.is_asking), default=None)

    def expire(self, now: float) -> None:
        """Stops waiting for replicas that have had their time."""
        for session, resumption in list(self._asking.items()):
            if resumption.is_asking and resumption.began + PATIENCE_S <= now:
                self._give_up(session, resumption, list(resumption.asked), now)

    # -- asking ----------------------------------------------------------------------------------------------------

    def _ask(self, session: Session, resumption: Resumption, now: float) -> None:
        if not self._topology.table.revision:
            return
        resumption.is_asking, resumption.began = True, now
        if resumption.unanswered:
            # Replicas of every backend: the endpoint's policy may have changed since the calls were sent.
            resumption.asked = dict.fromkeys(self._topology.replicas.values())
        self._out += [AskReconcile(replica, session) for replica in resumption.asked if replica.linked]
        self._finish_if_heard(session, resumption, now)

    def _give_up(self, session: Session, resumption: Resumption, replicas: Sequence[Replica], now: float) -> None:
        for replica in replicas:
            del resumption.asked[replica]
            resumption.deaf = replica.replica_id
        if replicas:
            self._finish_if_heard(session, resumption, now)

    # -- deciding --------------------------------------------------------------------------------------------------

    def _finish_if_heard(self, session: Session, resumption: Resumption, now: float) -> None:
        if resumption.asked:
            return
        resumption.is_over = True
        del self._asking[session]
        held, resumption.held = resumption.held, []
        for run, resent in held:
            if not run.waiting:
                continue  # taken back, or too late, meanwhile
            if resent:
                self._settle(run, resumption, now)
            else:
                self._intake.route(run, now)

    def _settle(self, run: Run, resumption: Resumption, now: float) -> None:
        """Each call that was sent before is recovered where it was found, or goes where calls go that nobody has."""
        ids = run.ids
        at = 0
        for trace, group in groupby(resumption.traces_of(ids)):
            begin, at = at, at + len(list(group))
            part = run
            if at - begin < len(ids):
                part = run.slice(begin, at)
                self._outcomes.replaced(run, at - begin, part)
            if trace is None:
                self._unseen(part, resumption.deaf, now)
            elif trace.is_evicted:
                self._outcomes.fail_waiting(part, failures.result_evicted(trace.replica))
            elif trace.replica.linked:
                self._intake.recover(part, trace.replica, now)
            else:
                self._unseen(part, trace.replica.replica_id, now)

    def _unseen(self, run: Run, deaf: str, now: float) -> None:
        """No replica that was asked has the calls; `deaf` could not be asked."""
        deaf = deaf or self._topology.who_left_since(run.arrived)
        if deaf and not run.options.idempotent:
            self._outcomes.fail_waiting(run, failures.not_heard(deaf))
            return
        run.attempt += bool(deaf)
        run.may_have_run = False
        self._intake.route(run, now)
