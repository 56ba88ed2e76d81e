"""The log of requests that fail, each found by an id in its answer, `log_ref`; and the id of each request.

Purpose: routers and replicas have logged a failure under its id; here are its route, its X-Request-ID and its trace. A
failure of the ingress itself gets an id of its own.
Invariants: failures of one kind within a second share a line, and the number of lines a second is bounded: a storm of
failures costs a look in a table each. A failure with an id keeps it. No text of a failure is logged, as it may be of a
handler, and no path, as it may have arguments.
Owner: the app, on its event loop.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import Final

from ingress_service.core.counters import Counters
from ingress_service.core.problems import Problem
from ingress_service.core.requests import RequestHeaders, given_id
from ingress_service.shell.request_spans import RequestSpans
from slotmesh.errors import Reason
from slotmesh.http_status import CLIENT_CLOSED
from slotmesh.ids import new_id
from slotmesh.logs import get_logger

WINDOW_S: Final = 1.0
MAX_LINES: Final = 20
"""Kinds of failures that have a line of their own in a window; all others share one id."""
MAX_IDS: Final = 16
"""Ids of requests that are logged of those that share a line."""
_REF_BYTES: Final = 8

_log = get_logger(__name__)

_Kind = tuple[str, str, int, str, str]
"""Route, reason, status, whether it was executed, and the id that it has."""


class _Entry:
    """Failures of one kind in this window."""

    __slots__ = ("more", "ref", "request_ids")

    def __init__(self, ref: str) -> None:
        self.ref = ref
        self.more = 0
        """Failures behind the one that was logged."""
        self.request_ids: list[str] = []
        """Of the first of these."""


class FailedRequests:
    """Logs failures, and gives an id to those that have none."""

    def __init__(self) -> None:
        self._entries: dict[_Kind, _Entry] = {}
        self._rest: _Entry | None = None
        """Of the kinds for which there was no line left."""
        self._timer: asyncio.TimerHandle | None = None

    def noted(self, problem: Problem, route: str, trace_id: str = "", request_id: str = "") -> Problem:
        """A request of this route fails. Returns the problem with its ids."""
        kind = (route, problem.reason, problem.status, problem.executed, problem.log_ref)
        entry = self._entries.get(kind)
        if entry is not None:
            entry.more += 1
            if request_id and len(entry.request_ids) < MAX_IDS:
                entry.request_ids.append(request_id)
        elif len(self._entries) < MAX_LINES:
            entry = self._entries[kind] = _Entry(problem.log_ref or new_id(_REF_BYTES))
            _log_failure(problem, entry.ref, route, trace_id, request_id)
        else:
            entry = self._left_out()
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(WINDOW_S, self._end_window)
        if problem.log_ref and not request_id:
            return problem
        return replace(problem, log_ref=problem.log_ref or entry.ref, request_id=request_id)

    def close(self) -> None:
        """Logs what was not logged yet."""
        if self._timer is not None:
            self._timer.cancel()
            self._end_window()

    def _left_out(self) -> _Entry:
        if self._rest is None:
            self._rest = _Entry(new_id(_REF_BYTES))
            _log.warning("requests failed; the other failures of this second share one id", log_ref=self._rest.ref)
        self._rest.more += 1
        return self._rest

    def _end_window(self) -> None:
        self._timer = None
        entries, self._entries = self._entries, {}
        for (route, reason, status, executed, _), entry in entries.items():
            if entry.more:
                _log.info(
                    "more requests failed",
                    log_ref=entry.ref,
                    route=route,
                    status=status,
                    reason=reason,
                    executed=executed,
                    requests=entry.more,
                    request_ids=" ".join(entry.request_ids),
                )
        if self._rest is not None:
            _log.warning("failures were left out of the log", log_ref=self._rest.ref, requests=self._rest.more)
            self._rest = None


def _log_failure(problem: Problem, ref: str, route: str, trace_id: str, request_id: str) -> None:
    """A decision of the caller or the handler is no warning. A client that has left is aware of it."""
    log = _log.info if problem.status < 500 or problem.reason == Reason.HANDLER_ERROR.value else _log.warning
    if problem.status == CLIENT_CLOSED:
        log = _log.debug
    named = {"request_id": request_id, "trace_id": trace_id}
    log(
        "a request failed",
        log_ref=ref,
        route=route,
        status=problem.status,
        reason=problem.reason,
        executed=problem.executed,
        **{name: text for name, text in named.items() if text},
    )


_ID_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class RequestRecords:
    """For operators: figures, the log of failures, traces."""

    counters: Counters
    failures: FailedRequests
    spans: RequestSpans


def request_id_of(headers: RequestHeaders) -> str:
    """The request's id in answers and logs: that of its client, or a new one."""
    return (given_id(headers.x_request_id) if headers.x_request_id else "") or new_request_id()


def new_request_id() -> str:
    """Of a request whose client has given it none."""
    return new_id(_ID_BYTES)
