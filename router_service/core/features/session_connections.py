"""Connections of sessions: what begins and ends with them, and which rosters their clients have acknowledged.

Owner: the scheduler.
"""

from __future__ import annotations

from typing import Final

from router_service.core.callers import Caller
from router_service.core.commands import NameRoster, RouterCommand
from router_service.core.events import RosterAcknowledged, SessionConnected, SessionDisconnected
from router_service.core.features.session_resumption import Resumptions
from router_service.core.features.uploads import HeldUploads
from router_service.core.lifecycle import cancellation
from router_service.core.lifecycle.answers import WithdrawalFollowUp
from router_service.core.lifecycle.intake import Availability, RoutingIntake
from router_service.core.lifecycle.outcomes import CallerOutcomes
from router_service.core.queueing.run_queues import SuspendedRuns
from router_service.core.replicas.replica import RoutedReplica
from router_service.core.rosters import RosterVersion, SessionConnection
from router_service.core.routing.topology import Topology

PATIENCE_S: Final = 0.25
"""How long replicas that join wait for clients: many times what an acknowledgement takes on its way."""
MAX_NAMED: Final = 1_024
"""Rosters that can still be acknowledged; of more, the newest."""


class Acknowledgements:
    """The rosters that the clients of connected sessions have acknowledged.

    Purpose: the next router of a session queries the replicas of acknowledged rosters, so no call of a session may go
    to a replica that its client may not know. A joining replica gets no calls until the clients of all sessions have
    acknowledged a roster with it. A client that takes longer than `PATIENCE_S` does not delay the others: its own calls
    wait instead, until it has acknowledged the roster.
    Invariants: every replica that is no longer joining is in a roster that each session has acknowledged, unless the
    session is suspended; waiting calls of a suspended session are in no queue.
    """

    def __init__(
        self,
        out: list[RouterCommand],
        topology: Topology,
        outcomes: CallerOutcomes,
        intake: RoutingIntake,
        suspended: SuspendedRuns,
    ) -> None:
        """Writes into `out`, the scheduler's list of commands."""
        self._out = out
        self._topology = topology
        self._outcomes = outcomes
        self._intake = intake
        self._suspended = suspended
        self._connected: dict[SessionConnection, Caller] = {}
        self._numbers: dict[RosterVersion, int] = {}
        """Rosters of this router, numbered as they came."""
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

    # -- sessions --------------------------------------------------------------------------------------------------

    def opened(self, caller: Caller) -> None:
        """A session has connected here. It is suspended until its client acknowledges the roster of the opening."""
        if caller.session is not None:
            self._connected[caller.session] = caller

    def left(self, session: SessionConnection) -> list[RoutedReplica]:
        """The connection has ended. Returns the replicas that join no longer."""
        self._connected.pop(session, None)
        session.is_suspended = True
        self._suspended.forget(session)
        return self._no_longer_lagging(session)

    def acknowledged(self, session: SessionConnection, version: RosterVersion, now: float) -> list[RoutedReplica]:
        """The client has acknowledged this roster, and those before it. Returns the replicas that join no longer."""
        number = self._numbers.get(version, 0)
        if number <= session.acknowledged:
            return []
        session.acknowledged = number
        if session.is_suspended and number >= self._joined and session in self._connected:
            if self.join_by is not None:
                self._lagging[session] = None
            session.is_suspended = False
            self._release(session, now)
        return self._no_longer_lagging(session) if number == self._newest else []

    # -- rosters ---------------------------------------------------------------------------------------------------

    def table_changed(self, now: float) -> list[RoutedReplica]:
        """There is a new table, perhaps with a new roster. Returns the replicas that join no longer."""
        version = self._topology.table.roster.version
        joining = [replica for replica in self._topology.replicas.values() if replica.is_joining]
        if version in self._numbers and all(replica in self._joining for replica in joining):
            return []
        self._newest += 1
        self._numbers.pop(version, None)
        self._numbers[version] = self._newest
        if len(self._numbers) > MAX_NAMED:
            del self._numbers[next(iter(self._numbers))]
        self._out += [NameRoster(caller, version) for caller in self._connected.values()]
        self._joining = {replica: self._joining.get(replica, self._newest) for replica in joining}
        if not joining:
            self._lagging.clear()
            self.join_by = None
            return []
        self._lagging = {each: None for each in self._connected if not each.is_suspended}
        if not self._lagging:
            return self._join(self._newest, now)
        if self.join_by is None:
            self.join_by = now + PATIENCE_S
        return []

    # -- time ------------------------------------------------------------------------------------------------------

    def expire(self, now: float) -> list[RoutedReplica]:
        """Returns the replicas that join no longer: those that all clients of sessions not suspended know."""
        if self.join_by is None or self.join_by > now:
            return []
        first = min(self._joining.values())
        for session in [each for each in self._lagging if each.acknowledged < first]:
            del self._lagging[session]
            self._suspend(session, now)
        return self._join(min((each.acknowledged for each in self._lagging), default=self._newest), now)

    # -- in here ---------------------------------------------------------------------------------------------------

    def _no_longer_lagging(self, session: SessionConnection) -> list[RoutedReplica]:
        if session not in self._lagging:
            return []
        del self._lagging[session]
        return [] if self._lagging else self._join(self._newest)

    def _join(self, through: int, now: float = 0.0) -> list[RoutedReplica]:
        """The replicas up to this roster join no longer; the others have their time from `now` on."""
        joined = [replica for replica, number in self._joining.items() if number <= through]
        for replica in joined:
            del self._joining[replica]
            replica.is_joining = False
            replica.backend.changed(replica)
        self._joined = max(self._joined, through)
        self.join_by = now + PATIENCE_S if self._joining else None
        if not self._joining:
            self._lagging.clear()
        return joined

    def _suspend(self, session: SessionConnection, now: float) -> None:
        """Takes what waits of the session out of its queues."""
        session.is_suspended = True
        for run in list(self._connected[session].runs):
            if run.account is None or not run.waiting:
                continue
            part = run.slice(run.cursor, len(run.payloads))
            cancellation.uncharge(run)
            self._outcomes.replaced(run, run.waiting, part)
            run.ids, run.payloads = run.ids[: run.cursor], run.payloads[: run.cursor]
            self._intake.hold(part, now, admitted=True)

    def _release(self, session: SessionConnection, now: float) -> None:
        for run, is_admitted in self._suspended.release(session):
            self._intake.route(run, now, admitted=is_admitted)


class SessionConnections:
    """Passes the start and end of a session's connection to all parts that keep state of it."""

    def __init__(
        self,
        outcomes: CallerOutcomes,
        availability: Availability,
        withdrawals: WithdrawalFollowUp,
        uploads: HeldUploads,
        resumptions: Resumptions,
        acknowledgements: Acknowledgements,
    ) -> None:
        self._outcomes = outcomes
        self._availability = availability
        self._withdrawals = withdrawals
        self._uploads = uploads
        self._resumptions = resumptions
        self._acknowledgements = acknowledgements

    def connected(self, event: SessionConnected, now: float) -> None:
        """What an earlier connection has sent is looked for."""
        caller = event.caller
        if caller.session is not None:
            self._acknowledgements.opened(caller)
            self._resumptions.opened(caller.session, now)

    def acknowledged(self, event: RosterAcknowledged, now: float) -> None:
        """Replicas for which this client was waited for get calls."""
        session = event.caller.session
        if session is not None:
            self._availability.joined(self._acknowledgements.acknowledged(session, event.version, now), now)

    def disconnected(self, event: SessionDisconnected, now: float) -> None:
        """Drops what no frame has carried: the client will send it again."""
        caller = event.caller
        self._uploads.left(caller)
        if caller.session is not None:
            self._resumptions.left(caller.session)
        self._withdrawals.follow_up(cancellation.leave(caller, self._outcomes), now)
        if caller.session is not None:
            self._availability.joined(self._acknowledgements.left(caller.session), now)
