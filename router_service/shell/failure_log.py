"""The log of failures that clients receive: each can be found by an id that its error carries, `log_ref`.

Purpose: call ids begin at 1 on every stream, so they identify nothing. Similar failures (same endpoint, session,
tenant, replica and reason) within a second share an id, and a second line has the number of the others: a storm of
failures costs a table lookup each, and some lines per second.
Invariants: a failure that has an id from the replica keeps it; each id that is sent is in the log at that time, if the
level is enabled; the text of a failure is not logged, as a handler may have written it. Of a session id, the log has
only the beginning: the full id would allow a reader to resume the session.
Owner: the dispatcher, on its event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from router_service.core.commands import DeliverFailure, RouterCommand
from slotmesh.errors import Failure, Reason
from slotmesh.ids import new_id
from slotmesh.logs import get_logger
from slotmesh.telemetry.names import LOG_REF

WINDOW_S: Final = 1.0
MAX_LINES: Final = 20
"""Kinds of failures that have an id of their own in a window; all others share one."""
SESSION_CHARS: Final = 8
MAX_NAME_CHARS: Final = 64
"""Maximum length of a logged endpoint name, which may be any text that a client has sent."""
_REF_BYTES: Final = 8
_ASKED_FOR: Final = frozenset(
    {
        Reason.ENDPOINT_NOT_FOUND,
        Reason.METHOD_NOT_FOUND,
        Reason.BAD_REQUEST,
        Reason.BAD_ARGUMENTS,
        Reason.PAYLOAD_TOO_LARGE,
        Reason.DUPLICATE_CALL_ID,
        Reason.CANCELLED,
        Reason.PREDECESSOR_FAILED,
        Reason.HANDLER_ERROR,
        Reason.NO_SLOT,  # of the time that the caller allows, as `reserve_all`, which allows little and tries again
    }
)
"""Ends that callers and handlers chose: no defect of the mesh, and no warning."""

_log = get_logger(__name__)

_Kind = tuple[str, str, str, str, Reason]


class _Entry:
    """Failures of one kind in this window."""

    __slots__ = ("more", "ref")

    def __init__(self) -> None:
        self.ref = new_id(_REF_BYTES)
        self.more = 0
        """Failures behind those that were logged."""


class FailureLog:
    """Logs failures, and gives each the id that it is logged under."""

    def __init__(self) -> None:
        self._entries: dict[_Kind, _Entry] = {}
        self._rest: _Entry | None = None
        """Failures of the kinds beyond `MAX_LINES`."""
        self._timer: asyncio.TimerHandle | None = None

    def carried_out(self, commands: Sequence[RouterCommand]) -> None:
        """Adds ids to the failures in these commands of the core."""
        for command in commands:
            if isinstance(command, DeliverFailure):
                self.delivered(command, command.endpoint)

    def delivered(self, delivery: DeliverFailure, endpoint: str) -> None:
        """Calls fail."""
        session = delivery.caller.session
        delivery.failure = self.noted(
            delivery.failure,
            len(delivery.ids),
            endpoint,
            session="" if session is None else session.session_id,
            tenant=delivery.tenant,
            call_id=delivery.ids[0] if delivery.ids else 0,
        )

    def noted(
        self, failure: Failure, count: int, endpoint: str, *, session: str = "", tenant: str = "", call_id: int = 0
    ) -> Failure:
        """Logs `count` calls that fail alike. Returns the failure with its id."""
        if LOG_REF in failure.metadata:
            return failure
        session, endpoint = session[:SESSION_CHARS], endpoint[:MAX_NAME_CHARS]
        replica_id = failure.metadata.get("replica_id", "")
        kind = (endpoint, session, tenant, replica_id, failure.reason)
        entry = self._entries.get(kind)
        if entry is not None:
            entry.more += count
        elif len(self._entries) < MAX_LINES:
            entry = self._entries[kind] = _Entry()
            log = _log.warning if failure.reason not in _ASKED_FOR else _log.info
            if failure.reason is Reason.CANCELLED:
                log = _log.debug
            facts = {
                "endpoint": endpoint,
                "session": session,
                "tenant": tenant,
                "backend": failure.metadata.get("backend", ""),
                "replica": replica_id,
                "call_id": call_id,
            }
            fields = {name: fact for name, fact in facts.items() if fact}
            executed = failure.executed.name.lower()
            log(
                "calls failed", log_ref=entry.ref, reason=failure.reason.value, executed=executed, calls=count, **fields
            )
        else:
            if self._rest is None:
                self._rest = _Entry()
                _log.warning("calls failed; further kinds in this second share one id", log_ref=self._rest.ref)
            entry = self._rest
            entry.more += count
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(WINDOW_S, self._end_window)
        return replace(failure, metadata={**failure.metadata, LOG_REF: entry.ref})

    def close(self) -> None:
        """Logs the pending counts."""
        if self._timer is not None:
            self._timer.cancel()
            self._end_window()

    def _end_window(self) -> None:
        self._timer = None
        entries, self._entries = self._entries, {}
        for (endpoint, _session, tenant, replica_id, reason), entry in entries.items():
            if entry.more:
                facts = {"endpoint": endpoint, "tenant": tenant, "replica": replica_id}
                fields = {name: fact for name, fact in facts.items() if fact}
                _log.info("more calls failed", log_ref=entry.ref, reason=reason.value, calls=entry.more, **fields)
        if self._rest is not None:
            _log.warning("failures were left out of the log", log_ref=self._rest.ref, calls=self._rest.more)
            self._rest = None
