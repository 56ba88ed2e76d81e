"""What is known of the calls of one run of a session: one record a run, never one a call; and a session's records.

Invariants: of each call exactly one holds: it is pending (it waits or runs), its outcome is kept, or it is gone (its
outcome was acknowledged or evicted, or it never started, or its caller gave it up); `pending` and `left` count them. A
record says which runs its calls wait in, and which links its outcomes go to, and looks into neither: they are
parameters of its type (`core/calls/runs.py` names the record of runs and links).
Owner: the session table.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from enum import Enum
from typing import Generic, TypeVar

from replica_service.core.calls.session_lanes import Progress, Stops
from slotmesh.calls.id_ranges import Range, stretches
from slotmesh.errors import Failure

RunT = TypeVar("RunT")
LinkT = TypeVar("LinkT")


class Mark(Enum):
    """The mark in place of an outcome without a payload."""

    DONE = "done"
    """A call has ended whose caller gave it up."""
    GONE = "gone"


KeptOutcome = Sequence[bytes] | Failure | Mark
"""A result for each call, or what all of them share."""
RecordPiece = tuple[int, int, KeptOutcome | None]
"""The calls from the first index up to the second. Without an outcome they are pending."""


class Taker(Generic[RunT, LinkT]):
    """A link that has asked for the outcomes of calls that ran already: those from `lo` up to `hi` of a record."""

    __slots__ = ("first", "hi", "link", "lo", "record")

    def __init__(self, record: Record[RunT, LinkT], lo: int, hi: int, link: LinkT, first: int) -> None:
        self.record = record
        self.lo = lo
        self.hi = hi
        self.link = link
        self.first = first
        """Run id of the call at `lo` on this link."""


class Record(Generic[RunT, LinkT]):
    """The calls of one run, by index as in its payloads. Compared by identity."""

    __slots__ = (
        "acknowledged",
        "attempt",
        "call_ids",
        "content_type",
        "count",
        "epoch",
        "first",
        "has_gaps",
        "is_fenced",
        "left",
        "link",
        "pending",
        "pieces",
        "recovers",
        "runs",
        "session",
        "session_id",
        "shelf",
        "size",
        "takers",
    )

    def __init__(
        self, session_id: str, epoch: int, call_ids: Sequence[int], count: int, *, attempt: int, recovers: bool
    ) -> None:
        self.session_id = session_id
        self.epoch = epoch
        self.call_ids = call_ids
        """The client's, strictly increasing; a `range` where they follow one by one."""
        self.attempt = attempt
        self.recovers = recovers
        """The run only asks what became of calls."""
        self.count = self.pending = self.left = count
        """Calls in all, those without outcome, and those that are not gone."""
        self.content_type = ""
        self.session: ReplicaSession[RunT, LinkT] | None = None
        """None before it was admitted, and once nothing of it is of interest."""
        self.is_fenced = False
        """A newer epoch has come, or its router has lost it and asks again: what has not started never does."""
        self.runs: list[RunT] = []
        """The run, or neighbours, and those that were split off; empty once all calls have ended, as payloads go with
        them."""
        self.link: LinkT | None = None
        """The link that gets the outcomes, as long as it is open and of the newest epoch."""
        self.first = 0
        """Run id of the first call there."""
        self.takers: Sequence[Taker[RunT, LinkT]] = ()
        """Links that get outcomes besides. Their calls never overlap."""
        self.pieces: list[tuple[int, int, KeptOutcome]] = []
        """What is not pending. They never overlap."""
        self.has_gaps = False
        """Calls may be gone that an executor still has."""
        self.acknowledged: list[Range] = []
        """Indices, first and last, of calls that were pending when their client had another outcome of them, as that
        their time was over: what they come to is not kept."""
        self.size = 0
        """Bytes that it keeps."""
        self.shelf: dict[Record[RunT, LinkT], None] | None = None
        """Where the table has it, in the order in which records are evicted."""

    def cut_out(self, lo: int, hi: int) -> Record[RunT, LinkT]:
        """A record of its own for some of the calls, before anything is known of them."""
        return Record(
            self.session_id,
            self.epoch,
            self.call_ids[lo:hi],
            hi - lo,
            attempt=self.attempt,
            recovers=self.recovers,
        )

    # -- indices and ids -------------------------------------------------------------------------------------------

    def stretches(self) -> Iterator[tuple[int, int, int]]:
        """First and last id of consecutive calls, and the index of the first."""
        return stretches(self.call_ids)

    def ids_of(self, lo: int, hi: int) -> Iterator[Range]:
        """The ids of the calls from index `lo` up to `hi`."""
        for first, last, index in self.stretches():
            begin, end = max(lo, index), min(hi, index + last - first + 1)
            if begin < end:
                yield first + begin - index, first + end - 1 - index

    # -- what became of them ---------------------------------------------------------------------------------------

    def between(self, lo: int, hi: int) -> Iterator[RecordPiece]:
        """All calls from index `lo` up to `hi`, in order."""
        at = lo
        self.pieces.sort(key=_index_of)
        for begin, end, outcome in list(self.pieces):
            if end <= at:
                continue
            if begin >= hi:
                break
            if begin > at:
                yield at, begin, None
                at = begin
            upto = min(end, hi)
            yield at, upto, _cut(outcome, at - begin, upto - begin)
            at = upto
        if at < hi:
            yield at, hi, None

    def put(self, lo: int, hi: int, outcome: KeptOutcome) -> None:
        """Replaces what is known of these calls."""
        pieces: list[tuple[int, int, KeptOutcome]] = []
        for begin, end, known in self.pieces:
            if end <= lo or hi <= begin:
                pieces.append((begin, end, known))
                continue
            if begin < lo:
                pieces.append((begin, lo, _cut(known, 0, lo - begin)))
            if hi < end:
                pieces.append((hi, end, _cut(known, hi - begin, end - begin)))
        pieces.append((lo, hi, outcome))
        self.pieces = pieces

    # -- which links get outcomes ----------------------------------------------------------------------------------

    def take_over(self, taker: Taker[RunT, LinkT]) -> list[Taker[RunT, LinkT]]:
        """The taker gets the outcomes of its calls, and no other link does. Returns those that it replaces, in part."""
        replaced = [each for each in self.takers if each.lo < taker.hi and taker.lo < each.hi]
        takers = [each for each in self.takers if each not in replaced]
        for each in replaced:
            if each.lo < taker.lo:
                takers.append(Taker(self, each.lo, taker.lo, each.link, each.first))
            if taker.hi < each.hi:
                takers.append(Taker(self, taker.hi, each.hi, each.link, each.first + taker.hi - each.lo))
        self.takers = [*takers, taker]
        return replaced

    def told(self, lo: int, hi: int) -> list[tuple[LinkT, int, int, int]]:
        """Links that get outcomes of these calls: link, run id of the first, and the indices from and up to which."""
        out: list[tuple[LinkT, int, int, int]] = []
        at = lo
        for taker in sorted(self.takers, key=lambda each: each.lo):
            begin, end = max(at, taker.lo), min(hi, taker.hi)
            if begin >= end:
                continue
            if at < begin and self.link is not None:
                out.append((self.link, self.first + at, at, begin))
            out.append((taker.link, taker.first + begin - taker.lo, begin, end))
            at = end
        if at < hi and self.link is not None:
            out.append((self.link, self.first + at, at, hi))
        return out


class ReplicaSession(Generic[RunT, LinkT]):
    """One session. Compared by identity."""

    __slots__ = ("epoch", "evicted", "index", "lost_through", "progress", "records", "seen_at", "session_id", "stops")

    def __init__(self, session_id: str, epoch: int, now: float, progress: Progress, stops: Stops) -> None:
        self.session_id = session_id
        self.epoch = epoch
        """The newest epoch that was seen."""
        self.records: dict[Record[RunT, LinkT], None] = {}
        self.index: list[tuple[int, int, int, Record[RunT, LinkT]]] | None = None
        """First and last id of consecutive calls that are known, index of the first, record; sorted, and apart from one
        another. None where it has to be made."""
        self.evicted: dict[int, list[Range]] = {}
        """Ids of calls whose outcomes were evicted, by the epoch they were sent at."""
        self.lost_through = 0
        """No call with a greater id had started and is unaccounted for."""
        self.seen_at = now
        self.progress = progress
        self.stops = stops

    def known(self, first: int, last: int) -> Iterator[tuple[int, int, int, Record[RunT, LinkT]]]:
        """Of these calls those that are pending or kept: first and last id, index of the first, record."""
        if self.index is None:
            # Of what is gone another record may know: together the ranges would overlap, and could not be searched.
            self.index = sorted(
                (
                    (begin + lo - index, begin + hi - 1 - index, lo, record)
                    for record in self.records
                    for begin, end, index in record.stretches()
                    for lo, hi, known in record.between(index, index + end + 1 - begin)
                    if known is not Mark.GONE
                ),
                key=lambda each: each[:2],
            )
        index = self.index
        at = bisect_left(index, first, key=lambda each: each[1])
        for begin, end, inner, record in index[at : bisect_right(index, last, key=lambda each: each[0])]:
            if record.session is None:
                continue
            lo, hi = inner + max(first, begin) - begin, inner + min(last, end) + 1 - begin
            for at_lo, at_hi, known in record.between(lo, hi):
                if known is not Mark.GONE:
                    yield begin + at_lo - inner, begin + at_hi - 1 - inner, at_lo, record


def _index_of(piece: tuple[int, int, KeptOutcome]) -> int:
    return piece[0]


def _cut(outcome: KeptOutcome, begin: int, end: int) -> KeptOutcome:
    return outcome if isinstance(outcome, Failure | Mark) else outcome[begin:end]
