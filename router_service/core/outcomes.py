"""Every call gets exactly one outcome: here, and nowhere else.

Purpose: turns what happened to runs into deliveries, and keeps the runs' and callers' books.
Invariants: `run.unanswered` falls by the calls of each delivery and ends at 0; a run leaves its caller's `runs` then.
Owner: the scheduler.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from router_service.core.commands import CancelRun, Command, DeliverFailure, DeliverResults
from slotmesh.errors import Failure

if TYPE_CHECKING:
    from collections.abc import Sequence

    from router_service.core.admission import Account
    from router_service.core.calls import Run, Sent
    from router_service.core.counters import Counters
    from router_service.core.replicas import Replica


class Outcomes:
    """Writes deliveries into `out`, the scheduler's list of commands."""

    def __init__(self, out: list[Command], counters: Counters) -> None:
        self._out = out
        self._counters = counters

    def results(
        self, sent: Sent, lo: int, count: int, payloads: Sequence[bytes], content_type: str, replica: Replica
    ) -> None:
        """`count` calls of the slice, from offset `lo`, ended well."""
        if sent.abandoned:
            return
        run = sent.run
        begin = sent.lo + lo
        ids, requests = run.ids, run.payloads
        if count != len(requests):
            ids, requests = ids[begin : begin + count], requests[begin : begin + count]
        self._settle(run, count)
        self._out.append(DeliverResults(run.caller, ids, payloads, content_type, replica, sum(map(len, requests))))

    def failed(self, sent: Sent, lo: int, count: int, failure: Failure) -> None:
        """`count` calls of the slice, from offset `lo`, failed."""
        if not sent.abandoned:
            self._fail(sent.run, sent.lo + lo, count, failure)

    def abandon(self, sent: Sent, failure: Failure) -> None:
        """The caller hears the failure now; what the replica answers later is dropped."""
        if sent.abandoned:
            return
        for lo, count in sent.open_parts():
            self._fail(sent.run, sent.lo + lo, count, failure)
        sent.abandoned = True
        self._out.append(CancelRun(sent))

    def fail_waiting(self, run: Run, failure: Failure, keep: int = 0) -> None:
        """All waiting calls of the run but the first `keep` fail; they are charged to nobody."""
        count = run.waiting - keep
        if count <= 0:
            return
        begin = run.cursor + keep
        ids, payloads = run.ids[begin:], run.payloads[begin:]
        self._settle(run, count)
        self._out.append(DeliverFailure(run.caller, ids, failure, sum(map(len, payloads))))
        self._counters.failed(run.label, failure, count)
        run.ids, run.payloads = run.ids[:begin], run.payloads[:begin]

    def replaced(self, run: Run, count: int, part: Run) -> None:
        """`count` calls of the run live on in another one, `part`."""
        part.caller.runs[part] = None
        self._settle(run, count)

    def _fail(self, run: Run, begin: int, count: int, failure: Failure) -> None:
        self._settle(run, count)
        size = sum(map(len, run.payloads[begin : begin + count]))
        self._out.append(DeliverFailure(run.caller, run.ids[begin : begin + count], failure, size))
        self._counters.failed(run.label, failure, count)

    def _settle(self, run: Run, count: int) -> None:
        run.unanswered -= count
        if not run.unanswered:
            del run.caller.runs[run]


def uncharge(run: Run) -> None:
    """The run's waiting calls no longer wait where they were charged."""
    account: Account | None = run.account
    if account is not None:
        account.release(run, run.waiting)
        run.account = None
