"""Rosters that the clients of connected sessions have acknowledged: which replicas may get their calls.

Owner: the scheduler.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from typing import Final

from router_service.core import failures
from router_service.core.commands import NameRoster, Step
from router_service.core.events import RosterAcknowledged
from router_service.core.lifecycle.feature import Feature
from router_service.core.lifecycle.intake import HOLD_S, Availability, RoutingIntake
from router_service.core.replicas.replica import RoutedReplica
from router_service.core.rosters import SessionConnection
from router_service.core.run_states import RunEvent
from router_service.core.runs import Caller, RouterRun, Sent

PATIENCE_S: Final = 0.25
"""How long replicas that join wait for clients: many times what an acknowledgement takes on its way."""
MAX_NAMED: Final = 1_024
"""Rosters that can still be acknowledged; of more, the newest."""


class Acknowledgements(Feature):
    """The rosters that the clients of connected sessions have acknowledged.

    Purpose: the next router of a session queries the replicas of acknowledged rosters, so no call of a session may go
    to a replica that its client may not know. A joining replica gets no calls until the clients of all sessions have
    acknowledged a roster with it. A client that takes longer than `PATIENCE_S` does not delay the others: its own calls
    wait instead, until it has acknowledged the roster.
    Invariants: every replica that is no longer joining is in a roster that each session has acknowledged, unless the
    session is suspended; waiting calls of a suspended session are in no queue.
    """

    def __init__(self, intake: RoutingIntake, availability: Availability) -> None:
        self._intake = intake
        self._topology = intake.topology
        self._suspended = intake.suspended
        self._availability = availability
        self._connected: dict[SessionConnection, Caller] = {}
        self._numbers: dict[tuple[str, int], int] = {}
        """Rosters of this router, numbered as they came, by generation and revision: clients may omit the term."""
        self._newest = 0
        """Number of the newest roster."""
        self._joined = 0
        """Number of the newest roster of which no replica joins any more."""
        self._joining: dict[RoutedReplica, int] = {}
        """Replicas that join, and the number of the first roster with each."""
        self._lagging: dict[SessionConnection, None] = {}
        """Sessions that these wait for."""
        self.join_by: float | None = None
        """When those wait no longer, monotonic seconds; None if none joins. To be read."""

    @property
    def waits(self) -> Collection[object]:
        """Replicas that join."""
        return self._joining

    # -- sessions --------------------------------------------------------------------------------------------------

    def connected(self, caller: Caller, _step: Step) -> None:
        """A session has connected here. It is suspended until its client acknowledges the roster of the opening."""
        if caller.session is not None:
            self._connected[caller.session] = caller

    def left(self, caller: Caller, step: Step) -> None:
        """The connection has ended. Once its calls have, replicas that joined for the others alone get calls."""
        if (session := caller.session) is not None:
            self._connected.pop(session, None)
            session.is_suspended = True
            self._suspended.forget(session)
            step.then(partial(self._no_longer_lagging, session))

    def acknowledged(self, event: RosterAcknowledged, step: Step) -> None:
        """The client has acknowledged this roster, and those before it."""
        session = event.caller.session
        if session is None:
            return
        number = self._numbers.get(event.version[:2], 0)
        if number <= session.acknowledged:
            return
        session.acknowledged = number
        if session.is_suspended and number >= self._joined and session in self._connected:
            if self.join_by is not None:
                self._lagging[session] = None
            session.is_suspended = False
            self._release(session, step)
        if number == self._newest:
            self._no_longer_lagging(session, step)

    # -- rosters ---------------------------------------------------------------------------------------------------

    def table_changed(self, step: Step) -> None:
        """There is a new table, perhaps with a new roster."""
        version = self._topology.table.roster.version
        joining = [replica for replica in self._topology.replicas.values() if replica.is_joining]
        if version[:2] in self._numbers and all(replica in self._joining for replica in joining):
            return
        self._newest += 1
        self._numbers.pop(version[:2], None)
        self._numbers[version[:2]] = self._newest
        if len(self._numbers) > MAX_NAMED:
            del self._numbers[next(iter(self._numbers))]
        step.commands += [NameRoster(caller, version) for caller in self._connected.values()]
        numbers = {replica: self._joining.get(replica, self._newest) for replica in joining}
        self._joining.clear()
        self._joining.update(numbers)
        if not joining:
            self._lagging.clear()
            self.join_by = None
            return
        self._lagging = {each: None for each in self._connected if not each.is_suspended}
        if not self._lagging:
            self._join(self._newest, step)
        elif self.join_by is None:
            self.join_by = step.now + PATIENCE_S

    # -- time ------------------------------------------------------------------------------------------------------

    def next_deadline(self) -> float | None:
        """When replicas that join stop waiting for clients."""
        return self.join_by

    def expire(self, step: Step) -> None:
        """Replicas that all clients of sessions not suspended know join no longer."""
        if self.join_by is None or self.join_by > step.now:
            return
        first = min(self._joining.values())
        for session in [each for each in self._lagging if each.acknowledged < first]:
            del self._lagging[session]
            self._suspend(session, step)
        through = min((each.acknowledged for each in self._lagging), default=self._newest)
        self._availability.joined(self._join(through, step), step)

    def overdue(self, run: RouterRun, step: Step) -> Sequence[Sent]:
        """Fails a run whose client has not acknowledged the roster in time."""
        if run.slot is None and run.session is not None and self._suspended.since(run.session) + HOLD_S <= step.now:
            self._intake.outcomes.fail_waiting(run, failures.NOT_ACKNOWLEDGED, step)
        return ()

    # -- in here ---------------------------------------------------------------------------------------------------

    def _no_longer_lagging(self, session: SessionConnection, step: Step) -> None:
        joined: list[RoutedReplica] = []
        if session in self._lagging:
            del self._lagging[session]
            joined = [] if self._lagging else self._join(self._newest, step)
        self._availability.joined(joined, step)

    def _join(self, through: int, step: Step) -> list[RoutedReplica]:
        """The replicas up to this roster join no longer; the others have their time from now on. Returns the former."""
        joined = [replica for replica, number in self._joining.items() if number <= through]
        for replica in joined:
            del self._joining[replica]
            replica.is_joining = False
            self._topology.changed(replica, step)
        self._joined = max(self._joined, through)
        self.join_by = step.now + PATIENCE_S if self._joining else None
        if not self._joining:
            self._lagging.clear()
        return joined

    def _suspend(self, session: SessionConnection, step: Step) -> None:
        """Takes what waits of the session out of its queues."""
        session.is_suspended = True
        for run in list(self._connected[session].runs):
            if run.account is None or not run.waiting:
                continue
            part = run.slice(run.cursor, len(run.payloads))
            step.unqueue(run)
            self._intake.outcomes.replaced(run, run.waiting, part, step)
            run.ids, run.payloads = run.ids[: run.cursor], run.payloads[: run.cursor]
            self._intake.outcomes.none_waits(run, step)
            self._intake.hold(part, step, admitted=True)

    def _release(self, session: SessionConnection, step: Step) -> None:
        for run, is_admitted in self._suspended.release(session):
            step.advance(run, RunEvent.RELEASED)
            self._intake.route(run, step, admitted=is_admitted)
