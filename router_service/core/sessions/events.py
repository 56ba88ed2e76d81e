"""Events of sessions: connections, rosters that clients acknowledge, and calls that are sent again.

Owner: the shell makes them, the scheduler reads them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from router_service.core.callers import Caller
from router_service.core.calls import Batch
from router_service.core.events import RouterEvent
from router_service.core.replicas.replica import RoutedReplica
from router_service.core.routing.rosters import RosterVersion
from router_service.core.runs import CallerBook
from router_service.core.sessions.found_calls import FoundCalls
from slotmesh.wire.trace_context import Traces


@dataclass(slots=True, eq=False)
class SessionConnected(RouterEvent):
    """A session has its connection here now: what an earlier one has sent is looked for at the replicas."""

    caller: Caller


@dataclass(slots=True, eq=False)
class RosterAcknowledged(RouterEvent):
    """The client of a session has acknowledged this roster."""

    caller: Caller
    version: RosterVersion


@dataclass(slots=True, eq=False)
class CallsResent(RouterEvent):
    """Calls came that an earlier connection of the session has sent before."""

    caller: Caller
    endpoint: str
    batches: Iterable[Batch]
    age_s: float
    """How long ago they were sent first, seconds."""
    first_roster: RosterVersion | None
    """The newest roster that their client knew when it sent them first; None where it does not say."""
    traces: Traces | None = None
    """As in CallsSubmitted."""


@dataclass(slots=True, eq=False)
class AllCallsResent(RouterEvent):
    """Of the calls that earlier connections of the caller's session have sent, no more are sent again."""

    caller: Caller


@dataclass(slots=True, eq=False)
class SessionDisconnected(RouterEvent):
    """The connection of a session has ended: its calls at replicas go on, the client will send the others again."""

    caller: CallerBook


@dataclass(slots=True, eq=False)
class SessionReconciled(RouterEvent):
    """The replica has answered what it knows of the calls that AskReconcile named."""

    replica: RoutedReplica
    session_id: str
    epoch: int
    found: FoundCalls
