"""Runs of sessions: which calls are executed, get a kept outcome, or are refused, and which links get outcomes.

Purpose: connects the engine and the session table. Runs without session are not passed to it.
Invariants: for each call of a session's run, the link that sent it gets exactly one outcome while it is open; a call
that ran does not run again while its outcome is kept.
Owner: the engine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence

from replica_service.core import failures
from replica_service.core.runs import ReplicaRun, RouterPeer, RunRecord
from replica_service.core.session_outcomes import bytes_of
from replica_service.core.session_records import KeptOutcome, Mark
from replica_service.core.session_table import SessionReport, SessionTable
from replica_service.core.work import note_failure
from slotmesh.calls.id_ranges import Range, common, merged, without
from slotmesh.errors import Executed, Failure

SWEEPS = 4
"""Sweeps in a session's time to live."""

Question = tuple[str, int, Iterable[Range]]
"""Session, epoch, and the ranges of the calls in question."""


class Sessions:
    """The sessions of one replica."""

    def __init__(
        self, hand_back: Callable[[Sequence[ReplicaRun]], None], now: Callable[[], float], ttl_s: float
    ) -> None:
        """`hand_back` prevents unstarted calls of runs from starting, and hands them back as fenced."""
        self._table = SessionTable(ttl_s=ttl_s)
        self._hand_back = hand_back
        self._now = now
        self._sweep_s = ttl_s / SWEEPS
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def unacknowledged(self) -> int:
        """The number of runs with kept outcomes."""
        return self._table.kept

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    # -- runs ------------------------------------------------------------------------------------------------------

    def admit(self, runs: Iterable[ReplicaRun]) -> list[ReplicaRun]:
        """Returns the runs to execute. The others get their outcome now, or when the calls that they repeat end."""
        admitted: list[ReplicaRun] = []
        table = self._table
        met: tuple[str, int] | None = None
        for run in runs:
            record = run.record
            if record is None:
                admitted.append(run)
                continue
            connection = (record.session_id, record.epoch)
            if connection != met and not self._meet(*connection):
                run.link.outbox.refused(run.first + run.lo, run.open, failures.FENCED)
                continue
            met = connection
            if (record.recovers or record.attempt) and not run.options.streaming:
                admitted += self._answer_known(run, record)
            else:
                if record.session is None:
                    table.add(run)  # and its neighbours
                admitted.append(run)
        return admitted

    def _meet(self, session_id: str, epoch: int) -> bool:
        """Whether the connection is the newest of its session. Unstarted calls of older connections are handed back."""
        overtaken = self._table.meet(session_id, epoch, self._now())
        if overtaken is None:
            return False
        if self._timer is None:
            self._timer = self._loop.call_later(self._sweep_s, self._sweep)
        for taker in overtaken.takers:
            for lo, hi, known in taker.record.between(taker.lo, taker.hi):
                if known is None and not taker.link.closed:
                    taker.link.outbox.failed(taker.first + lo - taker.lo, hi - lo, failures.OVERTAKEN)
        if overtaken.runs:
            self._hand_back(overtaken.runs)
        return True

    def _answer_known(self, run: ReplicaRun, asking: RunRecord) -> list[ReplicaRun]:
        """Delivers kept outcomes, and joins running calls. Returns the runs of the remaining calls."""
        stretches = self._table.find(asking)
        if passed := self._table.passed(asking, stretches):
            return self._answer_passed(run, asking, passed)
        if not asking.recovers and (lost := self._table.lost_to(run.link, stretches)):
            self._hand_back(lost)
            stretches = self._table.find(asking)
        if not asking.recovers and all(record is None for _, _, record, _ in stretches):
            self._table.add(run)
            return [run]
        left: list[ReplicaRun] = []
        for lo, hi, record, index in stretches:
            if record is not None:
                pieces = self._table.take(
                    record, index, index + hi - lo, run.link, run.first + lo, attempt=asking.attempt
                )
                for begin, end, outcome in pieces:
                    if outcome is not None:
                        first = run.first + lo + begin - index
                        _deliver_to(run.link, first, end - begin, outcome, bytes_of(outcome), record.content_type)
            elif asking.recovers:
                run.link.outbox.failed(run.first + lo, hi - lo, failures.EVICTED)
            else:
                left.append(self._cut_out(run, lo, hi))
        return left

    def _answer_passed(self, run: ReplicaRun, asking: RunRecord, passed: Sequence[Range]) -> list[ReplicaRun]:
        """Some calls of the run were sent again since, and were heard first. Returns the runs of the remaining ones."""
        for first, last in passed:
            run.link.outbox.failed(run.first + first, last + 1 - first, failures.SENT_AGAIN)
        left: list[ReplicaRun] = []
        for first, last in without(0, asking.count - 1, passed):
            part = run.cut_out(first, last + 1)
            if part.record is not None:
                left += self._answer_known(part, part.record)
        return left

    def _cut_out(self, run: ReplicaRun, lo: int, hi: int) -> ReplicaRun:
        part = run.cut_out(lo, hi)
        self._table.add(part)
        return part

    # -- outcomes --------------------------------------------------------------------------------------------------

    def results(self, run: ReplicaRun, record: RunRecord, lo: int, payloads: Sequence[bytes], size: int) -> None:
        """Delivers and keeps the results of calls, `size` bytes in total."""
        link = run.link
        if record.link is link and not record.takers:
            link.outbox.results(run.first + lo, payloads, size, run.options.content_type)
        else:
            self._deliver(run, record, lo, len(payloads), payloads)
        self._table.ended(record, lo, lo + len(payloads), payloads, size)

    def ended(self, run: ReplicaRun, record: RunRecord, lo: int, count: int, outcome: Failure | Mark) -> None:
        """Delivers and keeps the outcomes of calls that had started and have ended without results.

        Streaming calls do not outlive their connection: no outcome of them is kept.
        """
        if run.options.streaming:
            _deliver_to(run.link, run.first + lo, count, outcome, 0, "")
            self._table.unstarted(record, lo, lo + count)
            return
        self._deliver(run, record, lo, count, outcome)
        self._table.ended(record, lo, lo + count, outcome, 0)

    def failed(self, run: ReplicaRun, record: RunRecord, lo: int, count: int, failure: Failure) -> None:
        """Delivers failures. Those of calls that had not started are not kept."""
        if run.options.stop_generation and not (run.link.closed and failure.executed is Executed.NO):
            # A call that never started because its link is closed has not failed: its client sends it again.
            note_failure(run, lo)
        if failure.executed is Executed.NO:
            self._deliver(run, record, lo, count, Mark.DONE if run.options.no_reply else failure)
            self._table.unstarted(record, lo, lo + count)
        else:
            self.ended(run, record, lo, count, Mark.DONE if run.options.no_reply else failure)

    def refused(self, run: ReplicaRun, record: RunRecord, lo: int, count: int, failure: Failure) -> None:
        """Hands calls back. Links that have joined them are of the newest connection, for which nothing is fenced."""
        joined = failures.UNHEARD if failure is failures.FENCED else failure
        run.link.outbox.refused(run.first + lo, count, failure)
        for taker in record.takers:
            begin, end = max(lo, taker.lo), min(lo + count, taker.hi)
            if begin < end:
                taker.link.outbox.refused(taker.first + begin - taker.lo, end - begin, joined)
        self._table.unstarted(record, lo, lo + count)

    def unstarted(self, record: RunRecord, lo: int, hi: int) -> None:
        """Notes that these calls will not start. The links that wait for them get their outcome later."""
        self._table.unstarted(record, lo, hi)

    def _deliver(self, run: ReplicaRun, record: RunRecord, lo: int, count: int, outcome: KeptOutcome) -> None:
        """Delivers to the link that requested the calls last. The run's own open link otherwise gets a failure."""
        link = run.link
        is_delivered = False
        for to, first, begin, end in record.recipients(lo, lo + count):
            part = outcome[begin - lo : end - lo] if isinstance(outcome, Sequence) else outcome
            _deliver_to(to, first, end - begin, part, bytes_of(part), run.options.content_type)
            is_delivered |= to is link and first == run.first + begin
        if not is_delivered and not link.closed:
            link.outbox.failed(run.first + lo, count, failures.OVERTAKEN)

    # -- routers ---------------------------------------------------------------------------------------------------

    def reconcile(self, questions: Iterable[Question]) -> list[tuple[str, int, SessionReport]]:
        """Returns the state of the calls in question. From now on no call starts that was sent at an older epoch."""
        answers: list[tuple[str, int, SessionReport]] = []
        for session_id, epoch, asked in questions:
            self._meet(session_id, epoch)
            answers.append((session_id, epoch, self._table.reconcile(session_id, epoch, asked)))
        return answers

    def acknowledge(self, link: RouterPeer, ranges: Iterable[Range]) -> None:
        self._table.acknowledge(link, ranges, self._now())

    def close(self, link: RouterPeer) -> None:
        self._table.close(link)

    def owes(self, link: RouterPeer) -> bool:
        """Whether calls that the router has joined still run."""
        return any(True for _ in self._table.joined(link))

    def running_of(self, link: RouterPeer, ranges: Iterable[Range]) -> list[tuple[ReplicaRun, int, int, int]]:
        """Returns running calls that the router has joined under these run ids.

        Each entry: run, first and last index, and run id of the first.
        """
        out: list[tuple[ReplicaRun, int, int, int]] = []
        wanted = merged(ranges)
        for at, taker in list(self._table.joined(link)):
            for first, last in common(at, at + taker.hi - taker.lo - 1, wanted):
                if taker.record.runs:
                    out.append((taker.record.runs[0], taker.lo + first - at, taker.lo + last - at, first))
        return out

    def _sweep(self) -> None:
        self._timer = None
        self._table.sweep(self._now())
        if len(self._table):
            self._timer = self._loop.call_later(self._sweep_s, self._sweep)


def _deliver_to(link: RouterPeer, first: int, count: int, outcome: KeptOutcome, size: int, content_type: str) -> None:
    """Puts an outcome into the link's outbox, under its run ids."""
    if isinstance(outcome, Failure):
        link.outbox.failed(first, count, outcome)
    elif isinstance(outcome, Mark):
        link.outbox.done(first, count)
    else:
        link.outbox.results(first, outcome, size, content_type)
