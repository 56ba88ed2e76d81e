"""Every call gets exactly one outcome, and only here.

Purpose: turns what happened to runs into deliveries, and updates the accounting of runs and callers.
Invariants: `run.unanswered` falls by the calls of each delivery and ends at 0; then the run leaves its caller's `runs`.
A failure of a call whose earlier attempt was lost never states that the call was not executed, and one of a call whose
handler is known to have begun states that it was. Shadows end here too, and are only counted: no caller waits for them.
Owner: the scheduler.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import inf

from router_service.core import failures
from router_service.core.calls import Dispatch, LeasedSlot, Release, ReleasedSlot
from router_service.core.commands import CancelRun, DeliverDone, DeliverFailure, DeliverResults, DeliverSlot, Step
from router_service.core.counters import RouterCounters
from router_service.core.lifecycle.feature import Features
from router_service.core.limits.capacity import KnownReplica
from router_service.core.replicas.replica import RoutedReplica
from router_service.core.run_states import ARRIVING, LAST_OUTCOME, NEW, Earlier, RunEvent
from router_service.core.runs import RouterRun, Sent
from slotmesh.calls.id_ranges import joined
from slotmesh.calls.payload_block import PayloadBlock, nbytes_of
from slotmesh.errors import Executed, Failure, Reason
from slotmesh.streams.chunks import Payload


class CallerOutcomes:
    """Adds deliveries to steps."""

    def __init__(self, counters: RouterCounters, features: Features) -> None:
        self._counters = counters
        self._features = features

    def results(
        self,
        sent: Sent,
        lo: int,
        count: int,
        payloads: Sequence[Payload],
        content_type: str,
        replica: RoutedReplica,
        step: Step,
    ) -> None:
        """`count` calls of the slice, from offset `lo`, ended well."""
        if not self._ended_well(sent, lo, count, payloads, content_type, step):
            return
        run = sent.run
        ids, begin = run.ids, sent.lo + lo
        if count != len(ids):
            ids = ids[begin : begin + count]
        first, size = sent.first + lo, nbytes_of(run.payloads, begin, begin + count)
        last = step.commands[-1] if step.commands else None
        if (
            type(last) is DeliverResults
            and type(payloads) is not PayloadBlock
            and type(last.payloads) is not PayloadBlock
            and _follows(last, run, first, content_type, replica)
        ):
            if last is not step.open_results:
                last.payloads = list(last.payloads)
                if isinstance(last.ids, list):
                    last.ids = [*last.ids]
                step.open_results = last
            last.ids = joined(last.ids, ids)
            last.payloads += payloads  # type: ignore[operator]  # a list now
            last.size += size
            return
        step.commands.append(
            DeliverResults(run.caller, ids, payloads, content_type, replica, size, first, replica.links, run.options)
        )

    def done(self, sent: Sent, lo: int, count: int, step: Step) -> None:
        """`count` calls of the slice, from offset `lo`, ended without a reply (no_reply), or after their values."""
        if not self._ended_well(sent, lo, count, None, "", step):
            return
        run, begin = sent.run, sent.lo + lo
        ids, size = run.ids[begin : begin + count], nbytes_of(run.payloads, begin, begin + count)
        if run.options.streaming:
            step.commands.append(DeliverDone(run.caller, ids, size))
            return
        replica = sent.replica
        step.commands.append(DeliverDone(run.caller, ids, size, replica, sent.first + lo, replica.links))

    def _ended_well(
        self, sent: Sent, lo: int, count: int, payloads: Sequence[Payload] | None, content_type: str, step: Step
    ) -> bool:
        """Accounts for calls that ended well. Returns False for copies of a shadow, whose outcome no caller awaits."""
        run = sent.run
        self._settle(run, count, step)
        if run.shadow_of is not None:
            self._counters.copies_ended(run, count, step.now)
            return False
        self._executed(sent, count, step)
        for under_way, hook in self._features.completed:
            if under_way:
                hook(sent, lo, count, payloads, content_type, step)
        return True

    def slot(self, run: RouterRun, answer: LeasedSlot | ReleasedSlot, step: Step) -> None:
        """The operation on a slot ended well."""
        self._settle(run, 1, step)
        step.commands.append(DeliverSlot(run.caller, answer))

    def gone(self, run: RouterRun, replica_id: str, why: str, step: Step) -> None:
        """The replica that gave a slot has ended: nothing is held there for this caller."""
        if isinstance(run.slot, Release):
            self.slot(run, ReleasedSlot(), step)
            return
        may_repeat = isinstance(run.slot, Dispatch) and run.options.request is not None
        failure_of = failures.dispatch_lost if may_repeat else failures.replica_gone
        self._fail(run, 0, 1, failure_of(replica_id, why), step)

    def answered_with(self, sent: Sent, lo: int, count: int, failure: Failure, step: Step) -> None:
        """`count` calls of the slice, from offset `lo`, failed at the replica."""
        if sent.asked:
            self._answer_asked(sent, lo, count, failure, step)
            return
        run = sent.run
        if failure.executed is Executed.YES and run.shadow_of is None:
            self._executed(sent, count, step)
        self._fail_kept(sent, lo, count, failure, step, backend=sent.replica.backend_name)

    def failed(self, sent: Sent, lo: int, count: int, failure: Failure, step: Step) -> None:
        """`count` calls of the slice, from offset `lo`, failed, as the router found."""
        backend = sent.replica.backend_name
        for at, many, true in _with_truth(sent, lo, count, failure):
            self._fail(sent.run, sent.lo + at, many, true, step, backend=backend, sent=sent)

    def forget(self, run: RouterRun, step: Step) -> None:
        """Outcomes of the run are not delivered any more: the session has moved, and its next router asks for them."""
        step.advance(run, RunEvent.LEFT)
        if run.unanswered:
            self._settle(run, run.unanswered, step)

    def abandon(self, sent: Sent, failure: Failure, step: Step, lo: int = 0, count: int | None = None) -> None:
        """Fails the calls that are open now; what the replica answers later is dropped.

        A session that moves before the failure arrived asks for these calls at its next router: the replica keeps their
        outcomes until the client has acknowledged the failure.
        """
        is_kept = sent.run.session is not None
        for begin, many in sent.open_parts(lo, count):
            self._fail_kept(sent, begin, many, failure, step, is_kept=is_kept)
            sent.abandon(begin, many)
            step.commands.append(CancelRun(sent, begin, many))

    def ask(self, sent: Sent, failure: Failure, step: Step, lo: int = 0, count: int | None = None) -> bool:
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
                step.commands.append(CancelRun(sent, begin, many, asks=True))
        return len(asked) > before

    def end_asked(
        self, sent: Sent, parts: Iterable[tuple[int, int]], executed: Executed, step: Step
    ) -> list[tuple[int, int]]:
        """Those of these calls that the replica was asked about fail. Returns the parts that are left."""
        asked = sent.asked
        if not asked:
            return list(parts)
        left: list[tuple[int, int]] = []
        for lo, count in parts:
            for at in range(lo, lo + count):
                if (failure := asked.pop(at, None)) is not None:
                    self._end_asked(sent, at, failure, executed, step)
                elif left and sum(left[-1]) == at:
                    left[-1] = (left[-1][0], left[-1][1] + 1)
                else:
                    left.append((at, 1))
        return left

    def stop_asking(self, sent: Sent, offsets: Iterable[int], step: Step) -> None:
        """The replica has confirmed that nothing starts behind these calls, or has not answered in time."""
        for at in offsets:
            if sent.asked and sent.open_parts(at, 1) and (failure := sent.asked.pop(at, None)) is not None:
                self._end_asked(sent, at, failure, Executed.UNKNOWN, step)
                sent.abandon(at, 1)

    def _answer_asked(self, sent: Sent, lo: int, count: int, failure: Failure, step: Step) -> None:
        """The replica has answered calls with a failure. That they were taken back is none of its own."""
        asked = sent.asked or {}
        for at in range(lo, lo + count):
            pending = asked.pop(at, None)
            if pending is not None and failure.reason is Reason.CANCELLED:
                self._end_asked(sent, at, pending, failure.executed, step)
            else:
                self._fail_kept(sent, at, 1, failure, step)

    def _end_asked(self, sent: Sent, at: int, failure: Failure, executed: Executed, step: Step) -> None:
        if executed is Executed.NO and failure.reason is Reason.DEADLINE_RUNNING:
            failure = replace(failure, reason=Reason.DEADLINE_IN_QUEUE)
        self._fail_kept(sent, at, 1, replace(failure, executed=executed), step)

    def fail_waiting(self, run: RouterRun, failure: Failure, step: Step, keep: int = 0) -> None:
        """Fails all waiting calls of the run but the first `keep`; no account is charged for them."""
        count = run.waiting - keep
        if count > 0:
            begin = run.cursor + keep
            self._fail(run, begin, count, failure, step)
            run.ids, run.payloads = run.ids[:begin], run.payloads[:begin]
            if not keep:
                self.none_waits(run, step)

    def fail_some_waiting(self, run: RouterRun, spans: Sequence[tuple[int, int]], failure: Failure, step: Step) -> None:
        """Fails the waiting calls at these indices (from, to) of the run; no account is charged for them."""
        for lo, hi in spans:
            self._fail(run, lo, hi - lo, failure, step)
        run.drop_waiting([at for span in spans for at in range(*span)])
        if not run.waiting:
            self.none_waits(run, step)

    def none_waits(self, run: RouterRun, step: Step) -> None:
        """What the run had waiting has ended, or has moved: the others are at replicas."""
        if run.state is NEW and run.unanswered:
            step.advance(run, RunEvent.SENT)

    def replaced(self, run: RouterRun, count: int, part: RouterRun, step: Step) -> None:
        """Moves `count` calls of the run into another one, `part`."""
        part.caller.runs[part] = None
        if part.tenant is not None:
            part.tenant.unanswered += count
        self._settle(run, count, step)

    def _fail_kept(
        self, sent: Sent, lo: int, count: int, failure: Failure, step: Step, *, backend: str = "", is_kept: bool = True
    ) -> None:
        """Fails calls of the slice, from offset `lo`.

        `is_kept`: their replica keeps the outcome until the caller has acknowledged it, except of a call with several.
        """
        keeper = sent.replica if is_kept and not sent.run.options.streaming else None
        for at, many, true in _with_truth(sent, lo, count, failure):
            self._fail(sent.run, sent.lo + at, many, true, step, keeper, sent.first + at, backend=backend, sent=sent)

    def _fail(
        self,
        run: RouterRun,
        begin: int,
        count: int,
        failure: Failure,
        step: Step,
        replica: KnownReplica | None = None,
        first: int = 0,
        *,
        backend: str = "",
        sent: Sent | None = None,
    ) -> None:
        """`backend` is where the calls were, empty where only the failure knows; `sent` the slice that they were in."""
        self._settle(run, count, step)
        if run.shadow_of is not None:
            self._counters.copies_ended(run, count, step.now, failure)
            return
        if (run.attempt or run.earlier is not Earlier.NONE) and failure.executed is Executed.NO:
            # True of this attempt, but an earlier one was lost with its replica, or with its router.
            failure = replace(failure, executed=Executed.UNKNOWN)
        if run.tenant is not None:
            run.tenant.figures.failed += count
            failure = replace(failure, metadata={"tenant": run.options.tenant, **failure.metadata})
        size = nbytes_of(run.payloads, begin, begin + count)
        ids = run.ids[begin : begin + count]
        options = run.options
        links = replica.links if replica is not None else 0
        self._counters.failed(run, failure, count, backend)
        for under_way, hook in self._features.failed:
            if under_way:
                hook(run, begin, count, failure, sent, step)
        if run.options.no_reply:
            step.commands.append(DeliverDone(run.caller, ids, size, replica, first, links))
        else:
            step.commands.append(
                DeliverFailure(run.caller, ids, failure, size, replica, first, links, run.endpoint, options.tenant)
            )

    def _executed(self, sent: Sent, count: int, step: Step) -> None:
        run, counters = sent.run, self._counters
        arrived = run.arrived
        counters.times.executed(
            counters.label(run.endpoint), run.options.method, sent.sent_at - arrived, step.now - arrived, count
        )

    def _settle(self, run: RouterRun, count: int, step: Step) -> None:
        run.unanswered -= count
        if run.tenant is not None:
            run.tenant.unanswered -= count
        if not run.unanswered:
            run.alarm = inf
            del run.caller.runs[run]
            if run.state is ARRIVING:
                for hook in self._features.ended_early:
                    hook(run, step)
            step.advance(run, LAST_OUTCOME)


def by_beginning(sent: Sent, lo: int, count: int) -> Iterable[tuple[int, int, bool]]:
    """Calls of the slice, from offset `lo`, as (offset, count, whether their handlers are known to have begun)."""
    begun = sent.begun
    return [(at, 1, at in begun) for at in range(lo, lo + count)] if begun else ((lo, count, False),)


def _with_truth(sent: Sent, lo: int, count: int, failure: Failure) -> Iterable[tuple[int, int, Failure]]:
    """What these calls fail with, as (offset, count, failure): one whose handler has begun was executed."""
    if not sent.begun or failure.executed is not Executed.UNKNOWN:
        return ((lo, count, failure),)
    executed = replace(failure, executed=Executed.YES)
    return [(at, many, executed if has_begun else failure) for at, many, has_begun in by_beginning(sent, lo, count)]


def _follows(last: DeliverResults, run: RouterRun, first: int, content_type: str, replica: RoutedReplica) -> bool:
    """Whether results of the run, from this run id on, can be one delivery with the last ones."""
    return (
        last.first + len(last.ids) == first
        and last.caller is run.caller
        and last.replica is replica
        and last.options.wire is run.options.wire
        and last.content_type == content_type
    )
