"""Every call gets exactly one outcome, and only here.

Purpose: turns what happened to runs into deliveries, and updates the accounting of runs and callers.
Invariants: `run.unanswered` falls by the calls of each delivery and ends at 0; then the run leaves its caller's `runs`.
A failure of a call whose earlier attempt was lost never states that the call was not executed. Shadows end here too,
and are only counted: no caller waits for them.
Owner: the scheduler.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import inf

from router_service.core import failures
from router_service.core.calls import LeasedSlot, Release, ReleasedSlot
from router_service.core.commands import (
    CancelRun,
    DeliverDone,
    DeliverFailure,
    DeliverResults,
    DeliverSlot,
    RouterCommand,
)
from router_service.core.counters import RouterCounters
from router_service.core.events import StreamedOutcomesLeft
from router_service.core.lifecycle.taps import OpenTaps
from router_service.core.replicas.replica import RoutedReplica
from router_service.core.runs import CallerBook, RouterRun, Sent, SliceHolder
from slotmesh.calls.id_ranges import joined
from slotmesh.calls.payload_block import PayloadBlock, nbytes_of
from slotmesh.errors import Executed, Failure, Reason
from slotmesh.streams.chunks import Payload


class CallerOutcomes:
    """Writes deliveries into `out`, the scheduler's list of commands."""

    def __init__(self, out: list[RouterCommand], counters: RouterCounters, taps: OpenTaps) -> None:
        self._out = out
        self._taps = taps
        self._counters = counters
        self.now = 0.0
        """Of the step that is under way, monotonic seconds."""
        self._open: DeliverResults | None = None
        """The delivery that has lists of its own, to which results of other runs can be added."""
        self.stopped: list[tuple[CallerBook, str]] = []
        """Callers and ordering keys of which a call has failed, where later ones stop: they are to fail, too."""
        self.unbrought: list[RouterRun] = []
        """Calls that have ended before their payloads were there: what waits behind them may go on."""

    def results(
        self, sent: Sent, lo: int, count: int, payloads: Sequence[Payload], content_type: str, replica: RoutedReplica
    ) -> None:
        """`count` calls of the slice, from offset `lo`, ended well."""
        run = sent.run
        self._settle(run, count)
        if run.shadow_of is not None:
            self._counters.copies_ended(run, count, self.now)
            return
        self._executed(sent, count)
        if self._taps.is_used:
            self._taps.completed(sent, lo, count, payloads, content_type, now=self.now)
        ids, begin = run.ids, sent.lo + lo
        if count != len(ids):
            ids = ids[begin : begin + count]
        first, size = sent.first + lo, nbytes_of(run.payloads, begin, begin + count)
        last = self._out[-1] if self._out else None
        if (
            type(last) is DeliverResults
            and type(payloads) is not PayloadBlock
            and type(last.payloads) is not PayloadBlock
            and _follows(last, run, first, content_type, replica)
        ):
            if last is not self._open:
                last.payloads = list(last.payloads)
                if isinstance(last.ids, list):
                    last.ids = [*last.ids]
                self._open = last
            last.ids = joined(last.ids, ids)
            last.payloads += payloads  # type: ignore[operator]  # a list now
            last.size += size
            return
        self._out.append(
            DeliverResults(run.caller, ids, payloads, content_type, replica, size, first, replica.links, run.options)
        )

    def done(self, sent: Sent, lo: int, count: int) -> None:
        """`count` calls of the slice, from offset `lo`, ended without a reply (no_reply), or after their values."""
        run, begin = sent.run, sent.lo + lo
        self._settle(run, count)
        if run.shadow_of is not None:
            self._counters.copies_ended(run, count, self.now)
            return
        self._executed(sent, count)
        if self._taps.is_used:
            self._taps.completed(sent, lo, count, None, now=self.now)
        ids, size = run.ids[begin : begin + count], nbytes_of(run.payloads, begin, begin + count)
        if run.options.streaming:
            self._out.append(DeliverDone(run.caller, ids, size))
            return
        replica = sent.replica
        self._out.append(DeliverDone(run.caller, ids, size, replica, sent.first + lo, replica.links))

    def slot(self, run: RouterRun, answer: LeasedSlot | ReleasedSlot) -> None:
        """The operation on a slot ended well."""
        self._settle(run, 1)
        self._out.append(DeliverSlot(run.caller, answer))

    def gone(self, run: RouterRun, replica_id: str, why: str) -> None:
        """The replica that gave a slot has ended: nothing is held there for this caller."""
        if isinstance(run.slot, Release):
            self.slot(run, ReleasedSlot())
        else:
            self._fail(run, 0, 1, failures.replica_gone(replica_id, why))

    def answered_with(self, sent: Sent, lo: int, count: int, failure: Failure) -> None:
        """`count` calls of the slice, from offset `lo`, failed at the replica."""
        if sent.asked:
            self._answer_asked(sent, lo, count, failure)
            return
        run = sent.run
        if failure.executed is Executed.YES and run.shadow_of is None:
            self._executed(sent, count)
        keeper = None if run.options.streaming else sent.replica
        self._fail(run, sent.lo + lo, count, failure, keeper, sent.first + lo, sent.replica.backend.name, sent=sent)

    def failed(self, sent: Sent, lo: int, count: int, failure: Failure) -> None:
        """`count` calls of the slice, from offset `lo`, failed, as the router found."""
        self._fail(sent.run, sent.lo + lo, count, failure, backend=sent.replica.backend.name, sent=sent)

    def streamed_left(self, event: StreamedOutcomesLeft, _now: float) -> None:
        """The credit of these calls is their caller's again."""
        event.caller.streamed(event.ids)

    def forget(self, run: RouterRun) -> None:
        """Outcomes of the run are not delivered any more: the session has moved, and its next router asks for them."""
        run.has_left = True
        if run.unanswered:
            self._settle(run, run.unanswered)

    def abandon(self, sent: Sent, failure: Failure, lo: int = 0, count: int | None = None) -> None:
        """Fails the calls that are open now; what the replica answers later is dropped.

        A session that moves before the failure arrived asks for these calls at its next router: the replica keeps their
        outcomes until the client has acknowledged the failure.
        """
        run = sent.run
        keeper = sent.replica if run.session is not None and not run.options.streaming else None
        for begin, many in sent.open_parts(lo, count):
            self._fail(run, sent.lo + begin, many, failure, keeper, sent.first + begin, sent=sent)
            sent.abandon(begin, many)
            self._out.append(CancelRun(sent, begin, many))

    def ask(self, sent: Sent, failure: Failure, lo: int = 0, count: int | None = None) -> bool:
        """Fails these calls, as far as they are open, in a lane that stops: behind them nothing may start.

        The replica has to stop the lane, so it is asked, and the caller gets the failure when it has answered. Calls
        that had already ended keep their own outcomes. Returns whether the replica was asked.
        """
        asked = sent.asked = sent.asked or {}
        before = len(asked)
        for begin, many in sent.open_parts(lo, count):
            new = [at for at in range(begin, begin + many) if at not in asked]
            asked.update(dict.fromkeys(new, failure))
            if new:
                self._out.append(CancelRun(sent, begin, many, asks=True))
        return len(asked) > before

    def end_asked(self, sent: Sent, parts: Iterable[tuple[int, int]], executed: Executed) -> list[tuple[int, int]]:
        """Those of these calls that the replica was asked about fail. Returns the parts that are left."""
        asked = sent.asked
        if not asked:
            return list(parts)
        left: list[tuple[int, int]] = []
        for lo, count in parts:
            for at in range(lo, lo + count):
                if (failure := asked.pop(at, None)) is not None:
                    self._end_asked(sent, at, failure, executed)
                elif left and sum(left[-1]) == at:
                    left[-1] = (left[-1][0], left[-1][1] + 1)
                else:
                    left.append((at, 1))
        return left

    def stop_asking(self, sent: Sent, offsets: Iterable[int]) -> None:
        """The replica has confirmed that nothing starts behind these calls, or has not answered in time."""
        for at in offsets:
            if sent.asked and sent.open_parts(at, 1) and (failure := sent.asked.pop(at, None)) is not None:
                self._end_asked(sent, at, failure, Executed.UNKNOWN)
                sent.abandon(at, 1)

    def _answer_asked(self, sent: Sent, lo: int, count: int, failure: Failure) -> None:
        """The replica has answered calls with a failure. That they were taken back is none of its own."""
        run, asked = sent.run, sent.asked or {}
        keeper = None if run.options.streaming else sent.replica
        for at in range(lo, lo + count):
            pending = asked.pop(at, None)
            if pending is not None and failure.reason is Reason.CANCELLED:
                self._end_asked(sent, at, pending, failure.executed)
            else:
                self._fail(run, sent.lo + at, 1, failure, keeper, sent.first + at, sent=sent)

    def _end_asked(self, sent: Sent, at: int, failure: Failure, executed: Executed) -> None:
        run = sent.run
        if executed is Executed.NO and failure.reason is Reason.DEADLINE_RUNNING:
            failure = replace(failure, reason=Reason.DEADLINE_IN_QUEUE)
        keeper = None if run.options.streaming else sent.replica
        self._fail(run, sent.lo + at, 1, replace(failure, executed=executed), keeper, sent.first + at, sent=sent)

    def fail_waiting(self, run: RouterRun, failure: Failure, keep: int = 0) -> None:
        """Fails all waiting calls of the run but the first `keep`; no account is charged for them."""
        count = run.waiting - keep
        if count > 0:
            begin = run.cursor + keep
            self._fail(run, begin, count, failure)
            run.ids, run.payloads = run.ids[:begin], run.payloads[:begin]

    def fail_some_waiting(self, run: RouterRun, spans: Sequence[tuple[int, int]], failure: Failure) -> None:
        """Fails the waiting calls at these indices (from, to) of the run; no account is charged for them."""
        for lo, hi in spans:
            self._fail(run, lo, hi - lo, failure)
        run.drop_waiting([at for span in spans for at in range(*span)])

    def replaced(self, run: RouterRun, count: int, part: RouterRun) -> None:
        """Moves `count` calls of the run into another one, `part`."""
        part.caller.runs[part] = None
        if part.tenant is not None:
            part.tenant.unanswered += count
        self._settle(run, count)

    def _fail(
        self,
        run: RouterRun,
        begin: int,
        count: int,
        failure: Failure,
        replica: SliceHolder | None = None,
        first: int = 0,
        backend: str = "",
        *,
        sent: Sent | None = None,
    ) -> None:
        """`backend` is where the calls were, empty where only the failure knows; `sent` the slice that they were in."""
        self._settle(run, count)
        if run.shadow_of is not None:
            self._counters.copies_ended(run, count, self.now, failure)
            return
        if (run.attempt or run.may_have_run) and failure.executed is Executed.NO:
            # True of this attempt, but an earlier one was lost with its replica, or with its router.
            failure = replace(failure, executed=Executed.UNKNOWN)
        if run.tenant is not None:
            run.tenant.figures.failed += count
            failure = replace(failure, metadata={"tenant": run.options.tenant, **failure.metadata})
        size = nbytes_of(run.payloads, begin, begin + count)
        ids = run.ids[begin : begin + count]
        options = run.options
        if options.stop_generation and run.session is not None and not run.has_left:
            key = options.ordering_key
            if run.caller.stop(key, options.stop_generation, ids[0]):
                self.stopped.append((run.caller, key))
        links = replica.links if replica is not None else 0
        self._counters.failed(run, failure, count, backend)
        if self._taps.is_used:
            self._taps.failed(run, begin, count, failure, sent, now=self.now)
        if run.options.no_reply:
            self._out.append(DeliverDone(run.caller, ids, size, replica, first, links))
        else:
            self._out.append(
                DeliverFailure(run.caller, ids, failure, size, replica, first, links, run.endpoint, options.tenant)
            )

    def _executed(self, sent: Sent, count: int) -> None:
        run, counters = sent.run, self._counters
        arrived = run.arrived
        counters.times.executed(
            counters.label(run.endpoint), run.options.method, sent.sent_at - arrived, self.now - arrived, count
        )

    def _settle(self, run: RouterRun, count: int) -> None:
        run.unanswered -= count
        if run.tenant is not None:
            run.tenant.unanswered -= count
        if not run.unanswered:
            run.alarm = inf
            del run.caller.runs[run]
            if run.awaits:
                self.unbrought.append(run)


def _follows(last: DeliverResults, run: RouterRun, first: int, content_type: str, replica: RoutedReplica) -> bool:
    """Whether results of the run, from this run id on, can be one delivery with the last ones."""
    return (
        last.first + len(last.ids) == first
        and last.caller is run.caller
        and last.replica is replica
        and last.options.wire is run.options.wire
        and last.content_type == content_type
    )
