"""Outcomes of calls from the executors: counted, and passed to the links that asked for them.

Purpose: the sink of all executors, for what a handler returns, yields or raises.
Invariant: each call has one outcome, in the outbox of its link, or kept by its session.
Owner: the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from replica_service.core.calls import ReplicaRun
from replica_service.core.events import Ended
from replica_service.core.sessions.records import Mark
from replica_service.shell.counters import ReplicaCounters
from replica_service.shell.handler.failures import too_large
from replica_service.shell.sessions import Sessions
from slotmesh.errors import Executed, Failure
from slotmesh.runtime.pump import WokenPumps
from slotmesh.wire.rpc_frames import RPC_REQUESTS


class OutcomeReporter:
    """Brings outcomes to callers, and the ends of work to the scheduler."""

    def __init__(self, counters: ReplicaCounters, sessions: Sessions, post: Callable[[Ended], None]) -> None:
        """`post` gives the scheduler events of work that has ended."""
        self.post = post
        self.woken = WokenPumps()
        """The streams to routers."""
        self._counters = counters
        self._sessions = sessions

    def payloads(self, run: ReplicaRun, lo: int, payloads: Sequence[bytes]) -> None:
        if run.options.no_reply:
            self._done(run, lo, len(payloads))
            return
        if (arrival := run.arrival) is not None and arrival.heads is not None:
            payloads = arrival.heads.begin_each(run.first + lo, payloads)
        size = sum(map(len, payloads))
        limit = run.max_result_bytes
        if size > limit and max(map(len, payloads)) > limit:
            if len(payloads) > 1:
                for index, payload in enumerate(payloads, lo):
                    self.payloads(run, index, (payload,))
            else:
                self.failed(run, lo, 1, too_large(size, limit))
            return
        if run.options.streaming:
            for index, payload in enumerate(payloads, lo):
                self.values(run, index, (payload,))
            self._done(run, lo, len(payloads))
            return
        self._counters.calls += len(payloads)
        if run.traced is not None:
            run.traced.end()
        if run.options.content_type == RPC_REQUESTS:
            _requests_end(run, lo, len(payloads))
        if run.record is None:
            run.link.outbox.results(run.first + lo, payloads, size, run.options.content_type)
        else:
            self._sessions.results(run, run.record, lo, payloads, size)

    def values(self, run: ReplicaRun, index: int, payloads: Sequence[bytes]) -> None:
        run.link.outbox.values(run.first + index, payloads, sum(map(len, payloads)), run.options.content_type)

    def streamed(self, run: ReplicaRun, index: int) -> None:
        self._done(run, index, 1)

    def _done(self, run: ReplicaRun, lo: int, count: int) -> None:
        """Calls have ended well without a payload: their values were sent, or they were made with no_reply."""
        self._counters.calls += count
        if run.traced is not None:
            run.traced.end()
        if run.options.content_type == RPC_REQUESTS:
            _requests_end(run, lo, count)
        if run.record is None:
            run.link.outbox.done(run.first + lo, count)
        else:
            self._sessions.ended(run, run.record, lo, count, Mark.DONE)

    def failed(self, run: ReplicaRun, lo: int, count: int, failure: Failure) -> None:
        if failure.executed is Executed.YES:
            self._counters.calls += count
        self._counters.failures[failure.reason] += count
        if run.traced is not None:
            run.traced.end(failure)
        if run.options.content_type == RPC_REQUESTS:
            _requests_end(run, lo, count)
        if run.record is not None:
            self._sessions.failed(run, run.record, lo, count, failure)
        elif run.options.no_reply:
            run.link.outbox.done(run.first + lo, count)
        else:
            run.link.outbox.failed(run.first + lo, count, failure)


def answered(run: ReplicaRun, lo: int, hi: int, failure: Failure) -> None:
    """Calls from index `lo` up to `hi` never start: one that waits for its payload, or is sampled, is alone."""
    if run.traced is not None:
        run.traced.end(failure)
    if (uploads := run.link.uploads) is not None:
        uploads.forget(run.first + lo)
    if run.options.content_type == RPC_REQUESTS:
        _requests_end(run, lo, hi - lo)


def _requests_end(run: ReplicaRun, lo: int, count: int) -> None:
    """The calls from index `lo` on take no more requests."""
    if run.link.requests is not None:
        run.link.requests.ended(run.first + lo, count)
