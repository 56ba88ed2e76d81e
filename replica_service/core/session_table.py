"""The sessions of a replica: the newest epoch of each, and the state of their calls.

Purpose: a client that lost its router requests its calls again through another one, and each call is executed once.
Invariants: a session's epoch never falls. Outcomes are kept until they are acknowledged, until a newer connection does
not request them, until the bounds are exceeded (the oldest delivered ones are evicted first, and remembered as
evicted), or until the session was silent for its time to live. A started call that was dropped unacknowledged is never
reported as unstarted: the table remembers that it was dropped. Cost is per run and per delivery, never per call;
operations with a higher cost happen only after a connection was lost.
Owner: the engine's sessions (`shell/sessions.py`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from replica_service.core.runs import ReplicaRun, RouterPeer, RunRecord, RunTaker
from replica_service.core.session_outcomes import (
    MAX_FORGOTTEN,
    MAX_KEPT_BYTES,
    MAX_KEPT_RUNS,
    ForgottenSessions,
    KeptOutcomes,
    Remnant,
    bytes_of,
    disconnect,
)
from replica_service.core.session_records import (
    KeptOutcome,
    LaneBook,
    Mark,
    Progress,
    Record,
    RecordPiece,
    ReplicaSession,
    Stops,
    Taker,
)
from slotmesh.calls.id_ranges import Range, common, merged, without

RunSession: TypeAlias = ReplicaSession[ReplicaRun, RouterPeer]

RESUME_TTL_S = 60.0
MAX_SESSIONS = 65_536


@dataclass(frozen=True, slots=True)
class SessionReport:
    """The state of the calls in question. Calls in no list have not started, and will not."""

    running: Sequence[Range] = ()
    kept: Sequence[Range] = ()
    evicted: Sequence[Range] = ()
    is_incomplete: bool = False
    """The lists are incomplete: calls in none of them may have started."""


@dataclass(frozen=True, slots=True)
class Overtaken:
    """The calls of an older connection. Their waiting calls are to be handed back."""

    runs: list[ReplicaRun]
    """Runs with pending calls."""
    takers: list[RunTaker]
    """Links that wait for pending outcomes."""


Stretch = tuple[int, int, RunRecord | None, int]
"""The calls of a run from `lo` up to `hi`, the record that has them, and the index of the first in it."""


class SessionTable:
    """All sessions of one replica."""

    def __init__(
        self,
        *,
        max_bytes: int = MAX_KEPT_BYTES,
        max_runs: int = MAX_KEPT_RUNS,
        max_sessions: int = MAX_SESSIONS,
        max_forgotten: int = MAX_FORGOTTEN,
        ttl_s: float = RESUME_TTL_S,
    ) -> None:
        self._outcomes = KeptOutcomes(max_bytes, max_runs)
        self._max_sessions = max_sessions
        self._ttl_s = ttl_s
        self._sessions: dict[str, RunSession] = {}
        self._lanes = LaneBook()
        self._failures = LaneBook()
        self._forgotten = ForgottenSessions(max_forgotten)

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def bytes(self) -> int:
        """Memory of the kept outcomes, bytes."""
        return self._outcomes.bytes

    @property
    def kept(self) -> int:
        """The number of runs with kept outcomes."""
        return len(self._outcomes)

    # -- connections -----------------------------------------------------------------------------------------------

    def meet(self, session_id: str, epoch: int, now: float) -> Overtaken | None:
        """A connection of the session shows itself. Where it is newer than all before, nothing older starts any more.

        Returns what it overtook; None if it was overtaken itself.
        """
        session = self._sessions.get(session_id)
        if session is None:
            remnant = self._forgotten.find(session_id)
            if remnant is not None and epoch < remnant.epoch:
                return None
            if len(self._sessions) >= self._max_sessions:
                self._forget_idle()
            progress, stops = Progress(self._lanes), Stops(self._failures)
            session = self._sessions[session_id] = ReplicaSession(session_id, epoch, now, progress, stops)
            if remnant is not None:
                session.lost_through = remnant.lost_through
                self._forgotten.remove(session_id)
        session.seen_at = now
        if epoch == session.epoch:
            return _NOTHING
        if epoch < session.epoch:
            return None
        session.epoch = epoch
        session.progress.resumed()
        overtaken = Overtaken([], [])
        for record in session.records:
            record.is_fenced = True
            if record.pending:
                overtaken.runs.extend(record.runs)
                overtaken.takers.extend(record.takers)
            disconnect(record)
        return overtaken

    def close(self, link: RouterPeer) -> None:
        """Handles an ended link."""
        for entry in link.sent.values():
            if isinstance(entry, Record):
                entry.link = None
            else:
                entry.record.takers = [each for each in entry.record.takers if each.link is not link]
        link.sent.clear()

    # -- calls -----------------------------------------------------------------------------------------------------

    def add(self, run: ReplicaRun) -> None:
        """Adds the record of a new run (the first of neighbours), after `meet` with its session's epoch."""
        record = run.record
        if record is None:
            raise ValueError("the run belongs to no session")
        session = record.session = self._sessions[record.session_id]
        session.records[record] = None
        session.index = None
        record.link, record.first = run.link, run.first
        record.content_type = run.options.content_type
        if not record.runs:
            record.runs = [run]
        run.link.sent[run.first] = record

    def ended(self, record: RunRecord, lo: int, hi: int, outcome: KeptOutcome, size: int) -> None:
        """Keeps the outcome of started calls if a client may request it. `size`: bytes of its payloads."""
        if record.session is None:
            return
        if record.has_gaps:
            for begin, end, known in list(record.between(lo, hi)):
                if known is None:
                    part = outcome[begin - lo : end - lo] if isinstance(outcome, Sequence) else outcome
                    self._outcomes.keep(record, begin, end, part, bytes_of(part))
        else:
            self._outcomes.keep(record, lo, hi, outcome, size)
        for first, last in common(lo, hi - 1, record.acknowledged) if record.acknowledged else ():
            if record.session is not None:
                self._outcomes.forget(record, first, last + 1)

    def unstarted(self, record: RunRecord, lo: int, hi: int) -> None:
        """Drops calls that have an outcome and had not started."""
        if record.session is not None:
            self._outcomes.forget(record, lo, hi, pending_too=True)

    def find(self, asking: RunRecord) -> list[Stretch]:
        """Yields the records of the requested calls, in the order of the calls."""
        session = self._sessions.get(asking.session_id)
        out: list[Stretch] = []
        for first, last, index in asking.stretches():
            at = first
            for begin, end, inner, record in session.known(first, last) if session is not None else ():
                if at < begin:
                    out.append((index + at - first, index + begin - first, None, 0))
                out.append((index + begin - first, index + end + 1 - first, record, inner))
                at = end + 1
            if at <= last:
                out.append((index + at - first, index + last + 1 - first, None, 0))
        return out

    @staticmethod
    def passed(asking: RunRecord, stretches: Iterable[Stretch]) -> list[Range]:
        """Indices, first and last, of asking calls that are pending here at a later attempt.

        The router gave their link up, sent them again over another one, and the replica read the later attempt first.
        Kept outcomes are delivered to any link: the newest one has them already.
        """
        found: list[Range] = []
        for lo, hi, record, index in stretches:
            if record is not None and record.pending:
                for first, last in common(index, index + hi - lo - 1, _sent_after(record, asking)):
                    pending = [each for each in record.between(first, last + 1) if each[2] is None]
                    found += [(lo + begin - index, lo + end - 1 - index) for begin, end, _ in pending]
        return merged(found)

    def lost_to(self, link: RouterPeer, stretches: Iterable[Stretch]) -> list[ReplicaRun]:
        """The runs among these calls that came on other links and wait: the router that asks on this one has lost them.

        They do not start any more: waiting calls end with their link, and the router is answered that they have not
        started.
        """
        runs: dict[ReplicaRun, None] = {}
        for _, _, record, _ in stretches:
            if record is not None and record.link is not link and record.pending:
                record.is_fenced = True
                runs |= dict.fromkeys(record.runs)
        return list(runs)

    def take(
        self, record: RunRecord, lo: int, hi: int, link: RouterPeer, first: int, *, attempt: int
    ) -> list[RecordPiece]:
        """Outcomes of these calls go to this link, as those of the run ids from `first` on.

        Returns all outcomes that are known; pending ones follow when the calls have ended.
        """
        taker = Taker(record, lo, hi, link, first, attempt)
        for replaced in record.take_over(taker):
            replaced.link.sent.pop(replaced.first, None)
        for each in record.takers:
            each.link.sent[each.first] = each
        link.has_joined = True
        self._outcomes.taken(record)
        return list(record.between(lo, hi))

    @staticmethod
    def joined(link: RouterPeer) -> Iterator[tuple[int, RunTaker]]:
        """Yields the takers of this link with pending calls, by run id."""
        if link.has_joined:
            for first, entry in link.sent.items():
                if isinstance(entry, Taker) and any(
                    known is None for _, _, known in entry.record.between(entry.lo, entry.hi)
                ):
                    yield first, entry

    # -- forgetting ------------------------------------------------------------------------------------------------

    def acknowledge(self, link: RouterPeer, ranges: Iterable[Range], now: float) -> None:
        """Drops outcomes that clients have received, by run ids, both ends included; pending ones when they end."""
        sent = link.sent
        keys: list[int] | None = None
        for first, last in ranges:
            at = first
            while at <= last:
                entry, start = sent.get(at), at
                if entry is None:
                    # Rare: in the middle of a run, or unknown.
                    if keys is None:
                        keys = sorted(sent)
                    place = bisect_right(keys, at)
                    if place:
                        start = keys[place - 1]
                        entry = sent.get(start)
                    if entry is None or start + _count_of(entry) <= at:
                        if place == len(keys):
                            break
                        at = keys[place]
                        continue
                if isinstance(entry, Record):
                    record, lo, end = entry, at - start, start + entry.count
                else:
                    record, lo, end = entry.record, entry.lo + at - start, start + _count_of(entry)
                if end > last:
                    end = last + 1
                if record.session is not None:
                    record.session.seen_at = now
                    self._outcomes.forget(record, lo, lo + end - at)
                    if record.pending:
                        pending = [
                            (begin, upto - 1)
                            for begin, upto, known in record.between(lo, lo + end - at)
                            if known is None
                        ]
                        record.acknowledged = merged([*record.acknowledged, *pending])
                at = end

    def reconcile(self, session_id: str, epoch: int, asked: Iterable[Range]) -> SessionReport:
        """What became of calls that were sent before this epoch, after `meet`. Others of that time are forgotten.

        A question at an older epoch is not answered: what was known then may be dropped by now.
        """
        session = self._sessions.get(session_id)
        if session is None or session.epoch > epoch:
            return SessionReport(is_incomplete=True)
        if not (session.records or session.evicted or session.lost_through):
            return SessionReport([], [], [])  # unknown session: no search, regardless of the number of ranges
        wanted = merged(asked)
        running: list[Range] = []
        kept: list[Range] = []
        for record in list(session.records):
            if record.epoch < epoch and not record.takers:
                for first, last, index in record.stretches():
                    for begin, end in without(first, last, wanted):
                        self._outcomes.forget(record, index + begin - first, index + end + 1 - first, pending_too=True)
            if record.session is None:
                continue
            for first, last, index in record.stretches():
                for begin, end in common(first, last, wanted):
                    for lo, hi, known in record.between(index + begin - first, index + end + 1 - first):
                        if known is not Mark.GONE:
                            span = (first + lo - index, first + hi - 1 - index)
                            (running if known is None else kept).append(span)
        found = merged([*running, *kept])
        evicted: list[Range] = []
        for sent_at, ranges in list(session.evicted.items()):
            left = [each for first, last in ranges for each in common(first, last, wanted)]
            evicted += [each for first, last in left for each in without(first, last, found)]
            if left:
                session.evicted[sent_at] = left if sent_at < epoch else ranges
            elif sent_at < epoch:
                del session.evicted[sent_at]
        is_incomplete = bool(wanted) and wanted[0][0] <= session.lost_through
        return SessionReport(merged(running), merged(kept), merged(evicted), is_incomplete)

    def sweep(self, now: float) -> None:
        """Drops sessions that were silent for their time to live. Sessions with pending calls are not silent."""
        for session in list(self._sessions.values()):
            if any(record.pending for record in session.records):
                session.seen_at = max(session.seen_at, now)
            elif session.seen_at + self._ttl_s <= now:
                self._forget_session(session)

    # -- in here ---------------------------------------------------------------------------------------------------

    def _forget_idle(self) -> None:
        """Forgets the half of the sessions without records that has been silent longest."""
        idle = sorted(
            (session for session in self._sessions.values() if not session.records), key=lambda each: each.seen_at
        )
        for session in idle[: len(idle) // 2 + 1]:
            self._forget_session(session)

    def _forget_session(self, session: RunSession) -> None:
        """Drops a session without pending calls, and remembers its remnant."""
        lost = [session.lost_through, *(last for ranges in session.evicted.values() for _, last in ranges)]
        for record in list(session.records):
            lost += [
                record.call_ids[hi - 1] for _, hi, known in record.between(0, record.count) if known is not Mark.GONE
            ]
            self._outcomes.drop(record)
        del self._sessions[session.session_id]
        self._lanes.left(session.progress)
        self._failures.left(session.stops)
        self._forgotten.add(session.session_id, Remnant(session.epoch, max(lost)))


_NOTHING = Overtaken([], [])


def _count_of(entry: RunRecord | RunTaker) -> int:
    return entry.count if isinstance(entry, Record) else entry.hi - entry.lo


def _sent_after(record: RunRecord, asking: RunRecord) -> list[Range]:
    """Indices, first and last, of the record's calls that their router has sent at a later attempt than asking ones."""
    if record.epoch == asking.epoch and record.attempt > asking.attempt:
        return [(0, record.count - 1)]
    return merged((each.lo, each.hi - 1) for each in record.takers if each.attempt > asking.attempt)
