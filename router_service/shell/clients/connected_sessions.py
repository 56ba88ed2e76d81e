"""Sessions whose clients are connected here: which stream is the newest of each, and how many one caller has.

Invariants: a session has one newest stream; an older one is told that it is fenced.
Owner: the servicer of streams.
"""

from __future__ import annotations

from router_service.core.sessions.session import SessionConnection
from router_service.core.sessions.session_quota import SessionQuota
from router_service.shell.clients.stream import ClientStream
from router_service.shell.dispatcher import Dispatcher
from slotmesh.errors import Executed, Failure, Reason
from slotmesh.security.current import quota_name


class ConnectedSessions:
    """Those of one router."""

    def __init__(self, dispatcher: Dispatcher, quota: SessionQuota) -> None:
        self._dispatcher = dispatcher
        self._quota = quota
        self._newest: dict[str, ClientStream] = {}

    def take_over(self, session: SessionConnection, stream: ClientStream) -> Failure | None:
        """The stream is the newest of its session, and an older one ends; or why not.

        It is refused where it is not newer, and where the caller of the running rpc has too many sessions.
        """
        older = self._newest.get(session.session_id)
        if older is not None and older.caller.session is not None:
            if session.epoch <= older.caller.session.epoch:
                return fenced_by(session.epoch, older.caller.session.epoch)
            self._dispatcher.detach(older.caller)
            older.fenced.end(fenced_by(older.caller.session.epoch, session.epoch))
        if failure := self._quota.opened(quota_name(), session.session_id, self._dispatcher.clock.now()):
            return failure
        self._newest[session.session_id] = stream
        self._dispatcher.counts.sessions = len(self._newest)
        return None

    def ended(self, session: SessionConnection, stream: ClientStream, *, in_order: bool) -> None:
        """A stream of the session is over. `in_order`: its client has ended it."""
        if self._newest.get(session.session_id) is not stream:
            return
        del self._newest[session.session_id]
        self._dispatcher.counts.sessions = len(self._newest)
        self._quota.ended(quota_name(), session.session_id, self._dispatcher.clock.now(), in_order=in_order)


def fenced_by(epoch: int, newer: int) -> Failure:
    """The failure of a connection to whose session there is a newer one."""
    return Failure(
        reason=Reason.SESSION_FENCED,
        message=f"this connection of the session has epoch {epoch}; one with epoch {newer} or above was opened",
        executed=Executed.UNKNOWN,
    )
