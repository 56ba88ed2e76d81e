"""Connections of sessions: what begins and ends with them, and when replicas that joined get calls.

Owner: the scheduler.
"""

from __future__ import annotations

from router_service.core import cancellation
from router_service.core.outcomes import CallerOutcomes
from router_service.core.routing.availability import Availability
from router_service.core.sessions.acknowledgements import Acknowledgements
from router_service.core.sessions.events import RosterAcknowledged, SessionConnected, SessionDisconnected
from router_service.core.sessions.resumption import Resumptions
from router_service.core.uploads.uploads import HeldUploads
from router_service.core.withdrawals import WithdrawalFollowUp


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
