"""Connected streams: the newest of each session, the brake for clients that do not read, and the other routers.

Owner: the router's servicer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from router_service.core.events import BrakeChanged
from router_service.core.limits.quotas import SessionQuota
from router_service.core.limits.unread_results import BRAKE_S
from router_service.core.rosters import SessionConnection
from router_service.core.routing_table import RoutingTable
from router_service.shell.clients.stream import ClientStream
from router_service.shell.dispatcher import Dispatcher
from slotmesh.errors import Executed, Failure, Reason
from slotmesh.security.identity import quota_name


class Alternates:
    """Other routers, for clients that cannot stay at this one: their ports of the kind that the client connected to.

    Clients with a bearer token and no certificate are served at a port of its own, at each router.
    """

    def __init__(self, table: Callable[[], RoutingTable]) -> None:
        """`table` gives the one in force."""
        self._table = table
        self.address = ""
        """Where clients reach this router, once it listens: what is left out."""
        self.token_address = ""
        """The same for those without a certificate; empty: there is no such port."""

    def came_by_token_port(self, context: Any) -> bool:
        """Whether the client of this rpc did."""
        return bool(self.token_address) and not context.auth_context().get("x509_pem_cert")

    def others(self, *, by_token: bool) -> list[str]:
        """Addresses of the other routers."""
        table = self._table()
        known, own = (
            (table.router_token_addresses, self.token_address) if by_token else (table.router_addresses, self.address)
        )
        return [address for address in known if address != own]


class ConnectedSessions:
    """Sessions whose clients are connected to this router: the newest stream of each, and the number of each caller.

    Invariants: a session has one newest stream; older ones end as fenced.
    """

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


class Brake:
    """Turns the brake of the router's queues on or off (argument) while clients have too many unread results.

    `core/limits/unread_results.py` decides.
    Invariants: no call waits for the brake for longer than `BRAKE_S` at a time, whether any client reads or not.
    """

    def __init__(self, dispatcher: Dispatcher, too_long: Callable[[], None]) -> None:
        """`too_long` is called when the brake was on for `BRAKE_S`."""
        self._dispatcher = dispatcher
        self._too_long = too_long
        self._timer: asyncio.TimerHandle | None = None

    def __call__(self, is_braked: bool) -> None:
        """Puts the brake on, or takes it off."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if is_braked:
            self._timer = asyncio.get_running_loop().call_later(BRAKE_S, self._too_long)
        self._dispatcher.post(BrakeChanged(is_braked))
